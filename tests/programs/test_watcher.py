"""What a command asks a process to watch, and how a rank obeys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anyrig.hazards.program_watch import HazardOptions, ProgramWatch
from anyrig.programs.watcher import VARIABLE, Order, variables_of, watchers_of_environment
from anyrig.rehearsal.out_of_memory import OutOfMemoryWatch


def test_a_process_gets_the_watchers_of_its_orders_and_its_children_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hazards = HazardOptions(fails=True, sums=False, folder="/folder")
    for name, value in variables_of([hazards.order, None, OutOfMemoryWatch.order()]).items():
        monkeypatch.setenv(name, value)
    first, second = watchers_of_environment()
    assert isinstance(first, ProgramWatch)
    assert first._options == hazards
    assert isinstance(second, OutOfMemoryWatch)
    assert VARIABLE not in os.environ
    assert watchers_of_environment() == []
    assert variables_of([None]) == {}


@pytest.mark.parametrize("name", ["os:system", "anyrigs.watcher:Watcher", ""])
def test_only_classes_of_anyrig_are_loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps([[name, None]]))
    with pytest.raises(ValueError, match=f"names '{name}', which is not of anyrig; unset it"):
        watchers_of_environment()


LOADED = """
import sys
print(*sorted({name.split(".")[1] for name in sys.modules if name.startswith("anyrig.")}))
"""


@pytest.mark.parametrize(
    ("orders", "more"),
    [((), set()), ((HazardOptions().order,), {"hazards"})],
)
def test_a_rank_loads_only_what_was_asked_for(
    orders: tuple[Order, ...], more: set[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADED)
    # Not forked from a process that has loaded all.
    done = subprocess.run(
        [sys.executable, "-m", "anyrig.cli.rank", str(script)],
        env={**os.environ, **variables_of(orders)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    rooms = {*done.stdout.split()}
    assert rooms & {"hazards", "memory", "rehearsal", "verification", "parallel"} == more
