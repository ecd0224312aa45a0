"""The Slurm script, with stand-ins for Slurm's commands on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm.sh"

SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames gpu[07-08]" ] || exit 2
printf 'localhost\\nother\\n'  # the machines of the job, the first one first
"""

# Both tasks are here. The second machine has twice the devices.
SRUN = """#!/bin/bash
set -e
while [[ $1 == --* ]]; do shift; done
[ "$1 $2" = "anyrig run" ] || exit 2
shift 2
"$PYTHON" -m anyrig run --device cpu "$@" &
"$PYTHON" -m anyrig run --device cpu --nproc-per-device 2 "$@"
wait $!
"""

RANK = """
import os, sys
words = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
print(*(os.environ[word] for word in words), *sys.argv[1:])
"""


@pytest.mark.skipif(not shutil.which("timeout"), reason="needs bash and timeout (coreutils)")
def test_the_machines_of_a_job_meet_at_its_first(tmp_path: Path) -> None:
    for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "rank.py").write_text(RANK)
    job = {"SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "4711", "SLURM_NNODES": "2"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        # Ends all processes of the script if it hangs.
        ["timeout", "--kill-after=5", "100", "bash", str(SCRIPT), "rank.py", "--epochs", "3 4"],
        env={**os.environ, **job, "PATH": path, "PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    lines = sorted(line.partition("] ")[2] for line in ended.stdout.splitlines())
    assert lines == [
        "0 1 3 2 4711 --epochs 3 4",
        "0 2 3 2 4711 --epochs 3 4",
        "1 2 3 2 4711 --epochs 3 4",
    ]
