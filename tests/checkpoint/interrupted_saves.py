"""Starts processes that save in a loop, interrupts each at a random moment, and lets it go on.

``python interrupted_saves.py FOLDER INTERRUPTS SEED`` prints, for each interrupt: the last step
whose save had returned, the step found, and how many temporary folders were left after the next
save. The interrupted process itself loads, and saves again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
from torch import nn

import anyrig


def save_until_interrupted(folder: Path, pipe: int) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = 0
    if folder.exists():
        step = anyrig.load(folder, model=model, optimizer=optimizer).step or 0
    try:
        while True:
            nn.init.constant_(model.weight, step + 1)
            anyrig.save(folder, model=model, optimizer=optimizer, step=step + 1, keep=2)
            step += 1
            os.write(pipe, b".")
    except KeyboardInterrupt:
        pass
    found = anyrig.load(folder, model=model, optimizer=optimizer).step or 0
    assert (model.weight == found).all()
    anyrig.save(folder, model=model, optimizer=optimizer, step=found, keep=2)
    left = sum(path.name.startswith(".tmp-") for path in folder.iterdir())
    os.write(pipe, f"\n{step} {found} {left}".encode())


def interrupt_one(folder: Path, seconds: float) -> str:
    """Return what one process found after it was interrupted."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            save_until_interrupted(folder, writer)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 1), "the process ended before it was interrupted"  # after one save
    time.sleep(seconds)
    os.kill(child, signal.SIGINT)
    with os.fdopen(reader) as text:
        lines = text.read().splitlines()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the interrupted process failed"
    return lines[-1]


def main(folder: Path, interrupts: int, seed: int) -> None:
    torch.set_num_threads(1)
    # The processes inherit what this imports.
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    anyrig.save(folder.with_name("warm"), model=model, optimizer=optimizer)
    anyrig.load(folder.with_name("warm"), model=model, optimizer=optimizer)
    draw = random.Random(seed)
    for _ in range(interrupts):
        print(interrupt_one(folder, draw.uniform(0, 0.05)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
