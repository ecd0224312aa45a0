"""Correct runs in every way of spreading raise no alarm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from correct_runs import COMBINATIONS, SAMPLE, WIDTH

from forked_ranks import run_forked

RANKS = 4


def verdicts_on(cases: Sequence[Any], folder: Path, ranks: int) -> list[Any]:
    file = str(Path(__file__).with_name("correct_runs.py"))
    run_forked(file, "run_rank", [json.dumps(cases), str(folder)], ranks)
    found: list[Any] = json.loads((folder / "verdicts.json").read_text())
    return found


def test_a_sample_of_correct_runs_raises_no_alarm(tmp_path: Path) -> None:
    verdicts = verdicts_on(SAMPLE, tmp_path, RANKS)
    assert [(case, text) for case, code, text, *_ in verdicts if code != 0] == []
    assert len(verdicts) == len(SAMPLE)


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_correct_runs_raise_no_alarm(ranks: int, tmp_path: Path) -> None:
    cases = [
        case
        for case in COMBINATIONS
        if (case[5] != "sampler" or case[1] % ranks == 0)
        and (case[0] != "tensor" or WIDTH % ranks == 0)  # PyTorch refuses unequal parts
    ]
    verdicts = verdicts_on(cases, tmp_path, ranks)
    assert [(case, text) for case, code, text, *_ in verdicts if code != 0] == []
    assert len(verdicts) == len(cases) > 200
