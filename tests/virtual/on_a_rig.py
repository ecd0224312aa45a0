"""Runs programs in separate processes, since a virtual rig stays in its process for good."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


def run(
    *command: str, timeout: float = 180, **environment: str
) -> subprocess.CompletedProcess[str]:
    # This process may have a virtual rig, which its children would inherit.
    own = {name: value for name, value in os.environ.items() if name != "ANYRIG_REHEARSAL"}
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        env={**own, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def output_of(*command: str, **environment: str) -> str:
    finished = run(*command, **environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def output_of_lines(program: str, **environment: str) -> list[str]:
    # The collections of Python's exit would take half a second.
    source = f"{textwrap.dedent(program)}\nimport gc; gc.freeze()"
    return output_of("-c", source, **environment).splitlines()
