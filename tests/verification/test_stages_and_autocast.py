"""Pipelines of PyTorch, whose ranks have different parameters, and trainings with autocast."""

from __future__ import annotations

import json
from pathlib import Path

import autocast_runs
import pipelined_runs
import pytest

from forked_ranks import run_forked

CASES = {
    **{
        ("pipelined_runs", name, "float64"): found
        for name, found in pipelined_runs.EXPECTED.items()
    },
    **{("autocast_runs", name, "float64"): found for name, found in autocast_runs.EXPECTED.items()},
    **{
        ("autocast_runs", name, "float32"): found
        for name, found in autocast_runs.IN_OWN_TYPES.items()
    },
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], tuple[int, str]]:
    folder = tmp_path_factory.mktemp("verdicts")
    file = str(Path(__file__).with_name("verdicts_of_ranks.py"))
    run_forked(file, "run_rank", [[*CASES], str(folder)], ranks=4)
    found = json.loads((folder / "verdicts.json").read_text())
    return dict(zip(CASES, found, strict=True))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_verdict_is_right(
    case: tuple[str, str, str], verdicts: dict[tuple[str, ...], tuple[int, str]]
) -> None:
    code, text = verdicts[case]
    expected_code, part = CASES[case]
    assert code == expected_code, text
    assert part in text
