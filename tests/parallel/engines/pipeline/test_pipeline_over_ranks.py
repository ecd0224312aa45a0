"""Pipelines over the ranks of a group: real processes over gloo, and NCCL on virtual GPUs."""

from __future__ import annotations

from functools import cache

import failing_cases
import loss_cases
import pytest
import row_cases
import schedule_cases
import state_cases
from on_ranks import World, cases_of, run_cases

CASES = cases_of(schedule_cases, loss_cases, row_cases, state_cases, failing_cases)
ROWS = [case for case in CASES if ".case_rows" in case]
MANY = ["schedule_cases.case_schedules_of_more_micro_batches"]
ON_FOUR = [
    *ROWS,
    "loss_cases.case_gradients_of_arguments",
    "state_cases.case_clipping_and_scaling",
    "failing_cases.case_ranks_that_call_differently",
    "failing_cases.case_shapes_that_depend_on_values",
]
# Cases that depend on the device: transfers by NCCL, copies to the device, streams.
ON_GPUS = [
    "schedule_cases.case_a_device_that_a_later_stage_reads",
    "schedule_cases.case_automatic_schedule",
    "loss_cases.case_outputs_and_a_loss_outside",
    "schedule_cases.case_checkpointing",
    "state_cases.case_clipping_and_scaling",
    "schedule_cases.case_skip_connections_and_tied_weights",
]

# The rig of virtual GPUs if there is one, the ranks, and the cases.
WORLDS: dict[str, tuple[str | None, int, list[str]]] = {
    "2 on the CPU": (None, 2, [case for case in CASES if case not in {*ROWS, *MANY}]),
    "4 on the CPU": (None, 4, ON_FOUR),
    "2 on GPUs": ("2x1GiB", 2, ON_GPUS),
    "3 on the CPU, more": (None, 3, [case for case in CASES if case not in ROWS]),
    "4 on GPUs, more": ("4x1GiB", 4, [*ON_GPUS, *ROWS, *MANY]),
}


@cache
def world(name: str) -> World:
    rig, ranks, cases = WORLDS[name]
    return run_cases(cases, ranks, rig)


def of_worlds(*names: str) -> list[tuple[str, str]]:
    return [(name, case) for name in names for case in WORLDS[name][2]]


@pytest.mark.parametrize(("name", "case"), of_worlds("2 on the CPU", "4 on the CPU"))
def test_on_the_cpu(name: str, case: str) -> None:
    assert world(name)[case] == {}


@pytest.mark.parametrize("case", ON_GPUS)
def test_on_gpus(case: str) -> None:
    assert world("2 on GPUs")[case] == {}


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "case"), of_worlds("3 on the CPU, more", "4 on GPUs, more"))
def test_more(name: str, case: str) -> None:
    assert world(name)[case] == {}
