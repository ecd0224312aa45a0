"""Generated names are restored with the same bits, or refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import generated_names
import pytest
from generated_names import try_names

from forked_ranks import run_forked

QUICK = pytest.param(60, id="60")
ALL = pytest.param(300, marks=pytest.mark.sweep, id="300")


@pytest.mark.parametrize("count", [QUICK, ALL])
def test_names_are_restored_or_refused(count: int, tmp_path: Path) -> None:
    saved = [try_names(number, tmp_path / str(number)) for number in range(count)]
    assert 0.5 * count < sum(saved) < 0.95 * count


@pytest.mark.parametrize("count", [pytest.param(30, id="30"), ALL])
def test_names_in_shards_are_restored_or_refused(count: int, tmp_path: Path) -> None:
    numbers = [*range(count)]
    arguments = (str(tmp_path), numbers, count // 3)
    run_forked(generated_names.__file__, "try_names_in_shards", arguments, 2)
