"""Both modes advance the generator equally and allocate the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

from forked_programs import run_forked

PROGRAM = Path(__file__).parent / "programs" / "random_draws.py"


def run(*arguments: str) -> dict[str, list[int]]:
    finished = run_forked(str(PROGRAM), *arguments)
    assert finished.returncode == 0, finished.stderr
    seen: dict[str, list[int]] = json.loads(finished.stdout)
    return seen


def test_both_modes_take_the_same_numbers_and_bytes() -> None:
    assert run("shape-only") == run("compute")


def test_large_tensor_takes_the_numbers_of_three_launches() -> None:
    seen = run("shape-only", "--large")
    before, after = seen["exponential"][0], seen["large"][0]
    # 221,184 threads draw four values each: 884,736 a round. 2^31 + 2 bytes take 2428 rounds, and
    # then each half 1214: 4 * (2428 + 2 * 1214).
    assert after - before == 19_424
