"""The same numbers on eight devices, in another process: this one has the plugin's four."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_same_numbers_on_eight() -> None:
    file = Path(__file__).with_name("test_same_numbers.py")
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("--rig", "8xA100-80GB", "-k", "on_8", str(file)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    assert "skipped" not in finished.stdout
