"""Gradients that each rank changes before or after they are reduced, on two and on three ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clipped_runs import EXPECTED

from forked_ranks import run_forked

RANKS = (2, 3)


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks} ranks")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str]]:
    folder = tmp_path_factory.mktemp("verdicts")
    file = str(Path(__file__).with_name("verdicts_of_ranks.py"))
    cases = [("clipped_runs", name, "float64") for name in EXPECTED]
    run_forked(file, "run_rank", [cases, str(folder)], request.param)
    found = json.loads((folder / "verdicts.json").read_text())
    return dict(zip(EXPECTED, found, strict=True))


@pytest.mark.parametrize("name", EXPECTED)
def test_the_verdict_is_right(name: str, verdicts: dict[str, tuple[int, str]]) -> None:
    code, text = verdicts[name]
    expected_code, part = EXPECTED[name]
    assert code == expected_code, text
    assert part in text, text
