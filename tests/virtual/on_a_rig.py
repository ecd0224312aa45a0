"""Runs programs in separate processes, since a virtual rig stays in its process for good."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from forked_programs import run_forked

PROGRAMS = Path(__file__).parent / "programs"


def run(
    *command: str, timeout: float = 180, fresh: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python program, which finds torch imported unless it is `fresh`."""
    if not fresh:
        return run_forked(*command, timeout=timeout, **environment)
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


def output_of(*command: str, fresh: bool = False, **environment: str) -> str:
    finished = run(*command, fresh=fresh, **environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def output_of_lines(program: str, *, fresh: bool = False, **environment: str) -> list[str]:
    # The collections of Python's exit would take half a second.
    source = f"{textwrap.dedent(program)}\nimport gc; gc.freeze()"
    return output_of("-c", source, fresh=fresh, **environment).splitlines()
