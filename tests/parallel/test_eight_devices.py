"""The same numbers on eight devices, in another process: this one has the plugin's four."""

from __future__ import annotations

from pathlib import Path

from forked_programs import run_pytest


def test_same_numbers_on_eight() -> None:
    file = Path(__file__).with_name("test_same_numbers.py")
    finished = run_pytest("--rig", "8xA100-80GB", "-k", "on_8", str(file))
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    assert "skipped" not in finished.stdout
