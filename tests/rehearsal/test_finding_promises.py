"""Runs the tests of `findings` in a separate process, with a shape-only rig."""

from __future__ import annotations

from pathlib import Path

import pytest

from forked_programs import run_pytest

FOLDER = Path(__file__).parent / "findings"
FLOAT16 = FOLDER / "test_float16.py"


@pytest.mark.parametrize(("rig", "tests"), [("4xA100-80GB", FOLDER), ("T4", FLOAT16)])
def test_what_is_promised_comes(rig: str, tests: Path) -> None:
    finished = run_pytest(str(tests), ANYRIG_TEST_FINDINGS_RIG=rig)
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
