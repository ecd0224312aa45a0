"""Values that backward saved and that were overwritten unseen: found, with both lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from seeded_writes import missed

from forked_programs import run_forked

FOLDER = Path(__file__).parent


@pytest.mark.virtual_only("it is about virtual GPUs")
@pytest.mark.gpus(2)
def test_every_seeded_write_is_found_on_virtual_gpus() -> None:
    count, wrong = missed("cuda:1")
    assert wrong == []
    assert count >= 100


@pytest.mark.parametrize("program", ["shape_only_writes.py", "summed_writes.py"])
def test_every_seeded_write_is_found_without_data_and_by_sums(program: str) -> None:
    done = run_forked(str(FOLDER / program))
    assert done.returncode == 0, done.stderr
    count, *wrong = done.stdout.split("\n", 1)
    assert wrong == ["\n"]
    assert int(count.split()[0]) >= 100
