"""Saves to a small disk that has less and less space, and checks what is left.

``python full_disk.py FOLDER POINTS``, where FOLDER is the root of an empty file system, prints for
each amount of free space with which a save failed: the free bytes, the step found, and the names of
the checkpoints. It ends with the first save that succeeds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

import anyrig
from anyrig.errors import CheckpointError


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def fill_up(file: Path, left: int) -> None:
    """Write zeros until `left` bytes are free."""
    with file.open("wb") as ballast:
        block = os.statvfs(file.parent).f_frsize
        while free_bytes(file.parent) - block >= left:
            ballast.write(bytes(block))
            ballast.flush()


def main(folder: Path, points: int) -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(1, 128)).sum().backward()
    optimizer.step()
    series, ballast = folder / "runs", folder / "ballast"
    before = free_bytes(folder)
    anyrig.save(series, model=model, optimizer=optimizer, step=1, keep=1)
    needed = before - free_bytes(folder)
    known = {name: value.clone() for name, value in model.state_dict().items()}
    for point in range(points):
        free = needed * (point + 1) // (points - 3)  # the last ones are enough
        fill_up(ballast, free)
        nn.init.zeros_(model[0].weight)
        try:
            anyrig.save(series, model=model, optimizer=optimizer, step=2, keep=2)
        except CheckpointError as error:
            if "No space left on device" not in str(error):
                raise
        else:
            assert anyrig.load(series, model=model).step == 2
            assert not model[0].weight.any()
            print("succeeded")
            return
        found = anyrig.load(series, model=model).step
        assert all(torch.equal(model.state_dict()[name], known[name]) for name in known)
        print(free, found, *sorted(path.name for path in series.iterdir()), flush=True)
        ballast.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
