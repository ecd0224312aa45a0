"""The same numbers on up to eight devices, in another process: this one has four devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "error", "steps_of_pipelines.py", *arguments],
        cwd=Path(__file__).parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.stdout == "done\n", finished.stdout[-2000:] + finished.stderr[-4000:]


def test_a_few_steps() -> None:
    run()


@pytest.mark.sweep
def test_many_steps() -> None:
    run("--many")
