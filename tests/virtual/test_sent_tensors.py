"""CUDA tensors in the queues of `torch.multiprocessing`: one memory, in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


PROGRAM = Path(__file__).parent / "programs" / "sends_tensors.py"


def run(*options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "anyrig", "rehearse", "--rig", "2x1GiB", *options, str(PROGRAM)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_both_processes_see_what_each_writes() -> None:
    assert run() == [
        "('cuda:1', [3.0, 4.0], True) 0",
        "Attempted to send CUDA tensor received from another process;",
        "[1.0, 2.0, 3.0, 4.0, 5.0, 6.0] 30.0",
        "('Parameter', True, True)",
        # Memory stays taken until the receiver lets go of it.
        f"{float(2**20)} {4 * 2**20}",
        "let go",
        "0",
        "0",
    ]
