"""The same numbers on up to eight devices, in another process: this one has four devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from forked_programs import run_forked


def run(*arguments: str) -> None:
    program = str(Path(__file__).with_name("steps_of_pipelines.py"))
    finished = run_forked(program, *arguments, timeout=600)
    assert finished.stdout == "done\n", finished.stdout[-2000:] + finished.stderr[-4000:]


def test_a_few_steps() -> None:
    run()


@pytest.mark.sweep
def test_many_steps() -> None:
    run("--many")
