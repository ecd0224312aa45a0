"""Starts processes that save in a loop, interrupts each at a random moment, and lets it go on.

``python interrupted_saves.py FOLDER INTERRUPTS SEED`` prints, for each interrupt: the last step
whose save had returned, the step found, and how many temporary folders were left after the next
save. The interrupted process itself loads, and saves again.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from saving_process import load_step, make_objects, random_moments, signal_one
from torch import nn

import anyrig


def save_until_interrupted(folder: Path, pipe: int) -> None:
    objects = make_objects()
    step = load_step(folder, **objects)
    try:
        while True:
            nn.init.constant_(objects["model"].weight, step + 1)
            anyrig.save(folder, step=step + 1, keep=2, **objects)
            step += 1
            os.write(pipe, b".")
    except KeyboardInterrupt:
        pass
    found = load_step(folder, **objects)
    anyrig.save(folder, step=found, keep=2, **objects)
    left = sum(path.name.startswith(".tmp-") for path in folder.iterdir())
    os.write(pipe, f"\n{step} {found} {left}".encode())


def main(folder: Path, interrupts: int, seed: int) -> None:
    for seconds in random_moments(folder, interrupts, seed):
        text, status = signal_one(
            lambda pipe: save_until_interrupted(folder, pipe), seconds, signal.SIGINT
        )
        assert status == 0, "the interrupted process failed"
        print(text.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
