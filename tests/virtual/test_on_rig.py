"""Runs the tests of `on_rig` in separate processes, with a virtual rig for CUDA devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "on_rig"
COMPILED = FOLDER / "test_libraries.py"  # compiles a library, which takes seconds
ARGUMENTS = {
    "libraries": [str(COMPILED)],
    "others": [str(FOLDER), f"--ignore={COMPILED}"],
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_on_eight_cards(arguments: list[str]) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        env={**os.environ, "ANYRIG_TEST_RIG": "8xA100-80GB", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
