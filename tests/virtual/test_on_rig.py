"""Runs the tests of `on_rig` in a separate process, with a virtual rig for CUDA devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "on_rig"


def test_on_eight_cards() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)],
        env={**os.environ, "ANYRIG_TEST_RIG": "8xA100-80GB", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
