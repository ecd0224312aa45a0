"""Runs the tests of `findings` in a separate process, with a shape-only rig."""

from __future__ import annotations

from pathlib import Path

from forked_programs import run_pytest

FOLDER = Path(__file__).parent / "findings"
RIG = "4xA100-80GB"


def test_what_is_promised_comes() -> None:
    finished = run_pytest(str(FOLDER), ANYRIG_TEST_FINDINGS_RIG=RIG)
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
