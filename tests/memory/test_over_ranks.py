"""`survive` and `fit_batch_size` over four ranks, with one virtual GPU per rank."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from cases_on_ranks import CASES, RANKS

import anyrig

HERE = str(Path(__file__).parent)


@cache
def failures() -> dict[str, str]:
    here = HERE

    def work() -> dict[str, str]:  # sent by value: a rank does not know this folder yet
        import sys

        sys.path.insert(0, here)
        import cases_on_ranks

        return cases_on_ranks.run()

    found: dict[str, str] = anyrig.launch(work, rig="cpu", nproc_per_device=RANKS)
    return found


@pytest.mark.parametrize("case", CASES)
def test_four_ranks(case: str) -> None:
    assert case not in failures(), failures()[case]
