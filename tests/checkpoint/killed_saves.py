"""Starts processes that save in a loop, kills each at a random moment, and checks what is left.

``python killed_saves.py FOLDER KILLS SEED`` prints, for each kill, the announced step and the step
found.
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


def save_in_a_loop(folder: Path, pipe: int) -> None:
    """Save until the end of the process, and write each step whose save has returned."""
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = 0
    if folder.exists():
        step = anyrig.load(folder, model=model, optimizer=optimizer).step or 0
        assert model.weight[0, 0] == step
    while True:
        step += 1
        nn.init.constant_(model.weight, step)
        anyrig.save(folder, model=model, optimizer=optimizer, step=step, keep=2)
        os.write(pipe, f"{step}\n".encode())


def kill_one(folder: Path, seconds: float) -> str:
    """Return the steps that one process has announced before it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            save_in_a_loop(folder, writer)
        finally:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as announced:
        lines = announced.readline()  # at least one save
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        lines += announced.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the process ended by itself"
    return lines


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    # The processes inherit what this imports.
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    anyrig.save(folder.with_name("warm"), model=model, optimizer=optimizer)
    anyrig.load(folder.with_name("warm"), model=model, optimizer=optimizer)
    draw = random.Random(seed)
    for _ in range(kills):
        lines = kill_one(folder, draw.uniform(0, 0.05))
        model = nn.Linear(64, 64)
        found = anyrig.load(folder, model=model)
        assert (model.weight == found.step).all()
        left = sum(path.name.startswith(".tmp-") for path in folder.iterdir())
        print(lines.split()[-1], found.step, left, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
