"""A report that is made before the error unwinds the program, with nothing recorded before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from failing_reports import EXPECTED, reports_of, require_first_line

from anyrig.memory.batch_tensors import can_be_halved

HERE = Path(__file__).parent
MIB = 2**20
# Each layer keeps two results of 120,000 rows; the second branch fails on its way.
HELD = re.compile(r"([\d.]+) MiB  activations")
ON_STACK = ("sum_of_calls", "arguments", "comprehension", "generator", "formatted", "chained")
INDIVISIBLE = ("one_sample", "one_sample_in_training", "a_graph", "a_sparse_graph")
HALF = "half the batch"


@pytest.fixture(scope="module")
def reports() -> dict[str, str]:
    return reports_of("refuse_programs.py")


@pytest.mark.parametrize("program", [name for name in EXPECTED if name != "another_process"])
def test_the_reason_and_the_line_are_those_of_a_recording(
    program: str, reports: dict[str, str]
) -> None:
    require_first_line(program, reports)


@pytest.mark.parametrize("program", ON_STACK)
def test_what_only_the_stack_holds_is_an_activation(program: str, reports: dict[str, str]) -> None:
    held = HELD.search(reports[program])
    assert held is not None, reports[program]
    assert float(held[1]) > 900
    assert "temporaries" not in reports[program].partition("module")[0]


@pytest.mark.parametrize("program", INDIVISIBLE)
def test_what_cannot_be_divided_is_not_halved(program: str, reports: dict[str, str]) -> None:
    assert "activations for a backward pass hold" in reports[program]
    assert HALF not in reports[program]


def test_many_samples_can_be_halved(reports: dict[str, str]) -> None:
    assert HALF in reports["many_samples"]


def test_losses_whose_graphs_are_used_up_are_not_blamed(reports: dict[str, str]) -> None:
    first = reports["losses_whose_graphs_are_used_up"].splitlines()[0]
    assert "activations for a backward pass hold" in first


def test_a_backward_pass_blames_a_variable_of_the_main_thread(reports: dict[str, str]) -> None:
    first = reports["losses_kept_until_the_backward_pass"].splitlines()[0]
    assert "losses keeps" in first
    assert first.endswith("# HERE")


EDGES = torch.zeros(2, 9, dtype=torch.int64)


@pytest.mark.parametrize(
    ("batch", "can"),
    [
        ((), True),
        ((torch.ones(2, 3),), True),
        ((torch.ones(1, 3), torch.ones(1)), False),
        (([torch.ones(1, 3)], {"mask": torch.ones(1, 9)}), False),
        ((torch.ones(9, 3), EDGES), False),
        ((EDGES,), True),  # two sequences of tokens
        ((torch.ones(2, 3), EDGES), True),
        ((torch.ones(9, 3), torch.eye(9).to_sparse()), False),
        ((torch.ones(()), 7, "text"), True),
    ],
)
def test_which_batches_have_two_halves(batch: tuple[object, ...], can: bool) -> None:
    assert can_be_halved(batch) is can
