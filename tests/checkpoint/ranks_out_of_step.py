"""One of two ranks saves alone; prints how the later saves of both end, ``rank, call, result``.

Usage: ``python ranks_out_of_step.py FOLDER``. The ranks are forks of this process.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from killable_ranks import start_ranks, wait_for_ranks
from torch import nn

import anyrig
from anyrig.processes.group.membership import join_group


def save_in_turn() -> None:
    rank = int(os.environ["RANK"])
    join_group()
    folder, model = Path(sys.argv[1]), nn.Linear(2, 2)
    alone, done = folder.parent / "alone-is-over", folder.parent / "all-is-over"
    if rank == 0:
        attempt(rank, "alone", folder, model, timeout_seconds=0.5)
        alone.touch()
    wait_for(alone)
    for call in ("first", "second"):
        attempt(rank, call, folder, model, timeout_seconds=20.0)
    if rank == 1:
        done.touch()
    wait_for(done)  # rank 0 hosts the store


def wait_for(path: Path) -> None:
    end = time.monotonic() + 45.0
    while not path.exists():
        assert time.monotonic() < end, f"{path} was not made"
        time.sleep(0.01)


def attempt(rank: int, call: str, folder: Path, model: nn.Module, timeout_seconds: float) -> None:
    try:
        result = anyrig.save(folder, model=model, timeout_seconds=timeout_seconds).name
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    sys.stdout.write(f"{rank}, {call}, {result}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(max(wait_for_ranks(start_ranks(2, save_in_turn))))
