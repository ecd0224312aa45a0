"""Trains with logical shards, kills the ranks at random moments, and resumes on another number.

``python killed_exact.py FOLDER HOW KILLS`` prints, for each kill, the number of ranks and how many
steps were announced, and finally whether the run ends with the bits of a run that was not stopped.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp  # for all forks
from exact_training import train
from killable_ranks import kill_ranks, start_ranks, wait_for_ranks

COUNTS = (1, 2, 3, 4)


def main(folder: Path, how: str, kills: int) -> bool:
    """Return whether the run ends with the same bits."""
    torch.set_num_threads(1)
    steps = 9 + 6 * kills
    # Also imports what all forks inherit.
    expected = train(folder / "never", how, steps, save_every=steps)
    draw, ranks = random.Random(0), 4
    for _ in range(kills):
        ranks = draw.choice([count for count in COUNTS if count != ranks])
        started = time.perf_counter()
        pause = draw.randint(1, 4), draw.uniform(0, 0.03)
        step = kill_one(folder / "killed", how, steps, ranks, *pause)
        seconds = time.perf_counter() - started
        print(f"killed {ranks} ranks after step {step}, {seconds:.1f} s", flush=True)
    ranks = draw.choice([count for count in COUNTS if count != ranks])
    end = folder / "end.pt"

    def finish() -> None:
        state = train(folder / "killed", how, steps)
        if os.environ.get("RANK", "0") == "0":
            torch.save(state, end)

    codes = wait_for_ranks(start_ranks(ranks, finish))
    assert codes == [0] * ranks, codes
    found: dict[str, Any] = torch.load(end)
    same = all(torch.equal(value, found[name]) for name, value in expected.items())
    print(f"{ranks} ranks ended: {'the same bits' if same else 'OTHER BITS'}", flush=True)
    return same


def kill_one(
    folder: Path, how: str, steps: int, ranks: int, announcements: int, seconds: float
) -> int:
    """Kill ranks after some rank has taken a few steps; return the last step announced."""
    reader, writer = os.pipe()
    pids = start_ranks(
        ranks, lambda: train(folder, how, steps, end=lambda step: announce(writer, step))
    )
    os.close(writer)
    with os.fdopen(reader) as announced:
        lines = [announced.readline() for _ in range(ranks * announcements)]
        time.sleep(seconds)
        kill_ranks(pids)
        lines += announced.readlines()
    assert all(lines), "the ranks ended by themselves"
    return max(map(int, lines))


def announce(writer: int, step: int) -> None:
    os.write(writer, f"{step}\n".encode())


if __name__ == "__main__":
    sys.exit(not main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
