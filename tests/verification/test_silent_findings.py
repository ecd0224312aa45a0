"""Every public silent finding of `silent_findings.py` is found, with its tensor, line and cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from silent_findings import CANNOT_BE_COMPARED, EXPECTED

from forked_ranks import run_forked

RANKS = 4


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("verdicts")
    file = str(Path(__file__).with_name("silent_findings.py"))
    run_forked(file, "run_rank", [str(folder)], RANKS)
    found: dict[str, Any] = json.loads((folder / "verdicts.json").read_text())
    return found


# The ranks of the fixture run all findings, two of which are hazards on one device, too.
@pytest.mark.hazards("CUT", "NO_GRADIENT")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_finding_is_named(name: str, verdicts: dict[str, Any]) -> None:
    verdict, (code, tensor, text) = verdicts[name], EXPECTED[name]
    assert verdict["exit_code"] == 1, verdict["text"]
    finding = verdict["finding"]
    assert finding["cause"]["code"] == code, verdict["text"]
    assert finding["name"] == tensor, verdict["text"]
    assert text in finding["cause"]["text"] + finding["cause"]["remedy"], verdict["text"]
    lines = [finding["line"], finding["backward_line"]]
    assert any(line and line.startswith("silent_findings.py:") for line in lines), verdict["text"]
    assert tensor is None or finding["line"], verdict["text"]


@pytest.mark.parametrize("name", CANNOT_BE_COMPARED)
def test_what_cannot_be_compared_says_why(name: str, verdicts: dict[str, Any]) -> None:
    verdict = verdicts[name]
    assert verdict["exit_code"] == 2, verdict["text"]
    assert CANNOT_BE_COMPARED[name] in verdict["reason"]
