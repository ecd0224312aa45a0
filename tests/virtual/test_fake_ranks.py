"""Distributed training with one process for all ranks, in both modes.

Numbers mean nothing with the `fake` process group; shapes, bytes and what ranks decide by do.
"""

from __future__ import annotations

import pytest
from on_a_rig import PROGRAMS, output_of

PROGRAM = str(PROGRAMS / "fake_ranks.py")


def answers(*arguments: str) -> dict[str, str]:
    lines = output_of(PROGRAM, *arguments).splitlines()
    return dict(line.split(" -> ", 1) for line in lines)


@pytest.fixture(scope="module")
def shape_only() -> dict[str, str]:
    return answers("--shape-only")


def test_a_rank_holds_its_share_of_the_bytes(shape_only: dict[str, str]) -> None:
    for way in ("sharded bytes", "spread bytes"):
        seen, computed = shape_only[way].split()
        assert seen == computed


def test_values_that_ranks_decide_by_are_real_without_data(shape_only: dict[str, str]) -> None:
    assert shape_only["gathered"] == "{'rank': 0}"
    # randn and dropout of 64 x 8 numbers move the offset on by as much each.
    assert shape_only["offset"] == "1024"


def test_both_modes_count_the_same_bytes(shape_only: dict[str, str]) -> None:
    computed = answers()
    peaks = {way for way, answer in computed.items() if answer.isdecimal()}
    peaks -= {"offset", "planned"}
    assert len(peaks) == 10
    for way in peaks:
        # Which of two threads frees first, the caller's or a backward's, differs from run to run.
        # With PyTorch 2.15, which keeps no workspaces of cuBLAS, it makes 122 KiB of 9.6 MiB.
        assert int(shape_only[way]) == pytest.approx(int(computed[way]), rel=0.02), way
    rest = computed.keys() - peaks
    assert {way: computed[way] for way in rest} == {way: shape_only[way] for way in rest}
