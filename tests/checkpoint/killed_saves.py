"""Starts processes that save in a loop, kills each at a random moment, and checks what is left.

``python killed_saves.py FOLDER KILLS SEED`` prints, for each kill, the announced step, the step
found, and how many temporary folders were left.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from saving_process import load_step, make_objects, random_moments, signal_one
from torch import nn

import anyrig


def save_in_a_loop(folder: Path, pipe: int) -> None:
    """Save until the end of the process, and write each step whose save has returned."""
    objects = make_objects()
    step = load_step(folder, **objects)
    while True:
        step += 1
        nn.init.constant_(objects["model"].weight, step)
        anyrig.save(folder, step=step, keep=2, **objects)
        os.write(pipe, f"{step}\n".encode())


def main(folder: Path, kills: int, seed: int) -> None:
    for seconds in random_moments(folder, kills, seed):
        steps, status = signal_one(
            lambda pipe: save_in_a_loop(folder, pipe), seconds, signal.SIGKILL
        )
        assert os.WIFSIGNALED(status), "the process ended by itself"
        found = load_step(folder, model=nn.Linear(64, 64))
        left = sum(path.name.startswith(".tmp-") for path in folder.iterdir())
        print(steps.split()[-1], found, left, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
