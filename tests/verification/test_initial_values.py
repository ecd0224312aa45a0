"""On one device, a model begins with the values of the rig's first rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from begun_runs import RUNS

from forked_ranks import run_forked


@pytest.mark.parametrize("ranks", [2, 3])
def test_other_values_of_ones_own_are_replaced(ranks: int, tmp_path: Path) -> None:
    file = str(Path(__file__).with_name("verdicts_of_ranks.py"))
    run_forked(
        file, "run_rank", [[("begun_runs", name, "float64") for name in RUNS], str(tmp_path)], ranks
    )
    for code, text in json.loads((tmp_path / "verdicts.json").read_text()):
        assert code == 0, text
