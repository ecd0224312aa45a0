"""Runs of PyTorch's pipelines, with autocast, and with sequences that are padded differently."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import autocast_runs
import padded_runs
import pipelined_runs
import pytest
import torch

from forked_ranks import run_forked

CASES = {
    **{
        ("pipelined_runs", name, "float64"): found
        for name, found in pipelined_runs.EXPECTED.items()
    },
    **{("autocast_runs", name, "float64"): found for name, found in autocast_runs.EXPECTED.items()},
    **{("padded_runs", name, "float64"): found for name, found in padded_runs.EXPECTED.items()},
    **{
        ("autocast_runs", name, "float32"): found
        for name, found in autocast_runs.IN_OWN_TYPES.items()
    },
}

# Before 2.13, a rank with several stages sends messages to itself in their first step, which gloo
# refuses: the script cannot run on one rank, and the other ranks wait for its verdict.
RUNS_STAGES_ON_ONE_RANK = torch.__version__ >= (2, 13)
CASES_THAT_RUN = [case for case in CASES if RUNS_STAGES_ON_ONE_RANK or "interleaved" not in case[1]]


def verdicts_on(cases: Sequence[tuple[str, str, str]], folder: Path) -> list[tuple[int, str]]:
    file = str(Path(__file__).with_name("verdicts_of_ranks.py"))
    run_forked(file, "run_rank", [cases, str(folder)], ranks=4)
    found: list[tuple[int, str]] = json.loads((folder / "verdicts.json").read_text())
    return found


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], tuple[int, str]]:
    found = verdicts_on(CASES_THAT_RUN, tmp_path_factory.mktemp("verdicts"))
    return dict(zip(CASES_THAT_RUN, found, strict=True))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_verdict_is_right(
    case: tuple[str, str, str], verdicts: dict[tuple[str, ...], tuple[int, str]]
) -> None:
    if case not in CASES_THAT_RUN:
        pytest.skip("before 2.13 PyTorch cannot train several stages on one rank over gloo")
    code, text = verdicts[case]
    expected_code, part = CASES[case]
    assert code == expected_code, text
    assert part in text


def test_the_script_begins_with_other_random_numbers_on_each_rank(tmp_path: Path) -> None:
    ((code, text),) = verdicts_on([("dropout_runs", "unseeded_dropout", "float64")], tmp_path)
    assert code == 0, text


@pytest.mark.sweep
def test_a_model_that_pytorch_traces_is_the_same(tmp_path: Path) -> None:
    ((code, text),) = verdicts_on([("pipelined_runs", "right_traced", "float64")], tmp_path)
    assert code == 0, text
