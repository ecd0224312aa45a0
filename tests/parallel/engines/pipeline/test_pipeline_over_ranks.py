"""Pipelines over the ranks of a group: real processes over gloo, and NCCL on virtual GPUs."""

from __future__ import annotations

from functools import cache

import pytest
from on_ranks import World, run_cases
from pipeline.cases_over_ranks import CASES, MANY, ON_FOUR, ON_GPUS, ROWS, WHOLE

# The rig of virtual GPUs if there is one, the ranks, and the cases.
WORLDS: dict[str, tuple[str | None, int, list[str]]] = {
    "2 on the CPU": (None, 2, WHOLE),
    "4 on the CPU": (None, 4, ON_FOUR),
    "2 on GPUs": ("2x1GiB", 2, ON_GPUS),
    "3 on the CPU, more": (None, 3, [name for name in CASES if name not in ROWS]),
    "4 on GPUs, more": ("4x1GiB", 4, [*ON_GPUS, *ROWS, *MANY]),
}


@cache
def world(name: str) -> World:
    rig, ranks, cases = WORLDS[name]
    return run_cases([f"pipeline.cases_over_ranks.{case}" for case in cases], ranks, rig)


def cases_of(*names: str) -> list[tuple[str, str]]:
    return [(name, case) for name in names for case in WORLDS[name][2]]


@pytest.mark.parametrize(("name", "case"), cases_of("2 on the CPU", "4 on the CPU"))
def test_on_the_cpu(name: str, case: str) -> None:
    assert world(name)[f"pipeline.cases_over_ranks.{case}"] == {}


@pytest.mark.parametrize("case", ON_GPUS)
def test_on_gpus(case: str) -> None:
    assert world("2 on GPUs")[f"pipeline.cases_over_ranks.{case}"] == {}


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "case"), cases_of("3 on the CPU, more", "4 on GPUs, more"))
def test_more(name: str, case: str) -> None:
    assert world(name)[f"pipeline.cases_over_ranks.{case}"] == {}
