"""Runs the tests of `findings` in a separate process, with a shape-only rig."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "findings"
RIG = "4xA100-80GB"


def test_what_is_promised_comes() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)],
        env={**os.environ, "ANYRIG_TEST_FINDINGS_RIG": RIG, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
