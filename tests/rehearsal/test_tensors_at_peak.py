"""Runs the tests of `peak_cases.py` in a process whose GPU holds nothing of other tests."""

from __future__ import annotations

from pathlib import Path

from forked_programs import run_pytest


def test_what_the_tensors_are_at_the_peak() -> None:
    cases = Path(__file__).with_name("peak_cases.py")
    finished = run_pytest(str(cases), "--rig", "A100-80GB")
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    assert "6 passed" in finished.stdout
