"""How a command ends its process: nothing of the program's is lost, and no library complains.

Triton's bindings, which `torch._dynamo` imports, print thirty lines about leaks if their objects
are alive when the interpreter ends. PyTorch's build for the CPU comes without Triton, so the tests
of standard error can fail only with the other builds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ANYRIG = [sys.executable, "-W", "error", "-m", "anyrig"]

TRAINS = """
import torch
import torch.distributed as dist
import torch._dynamo

device = "cuda" if torch.cuda.is_available() else "cpu"
samples = torch.arange(16.0, device=device).reshape(4, 4)
if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
    samples = samples[dist.get_rank() :: 2]
model = torch.nn.Linear(4, 4).to(device)
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(samples).square().mean().backward()
    optimizer.step()
if dist.is_initialized():
    dist.destroy_process_group()
"""

# The last lines of a program, in the order in which they run.
ENDS = """
import atexit

class Log:
    def __del__(self):
        print("destructor", name)

name = "of the log"
log = Log()
atexit.register(lambda: print("handler"))
print("end")
"""


def anyrig(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ANYRIG, *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        "rehearse --quiet --rig T4 train.py",
        "run --device cpu --nproc-per-device 2 train.py",
        "verify --rig 2xT4 --nproc-per-node gpu train.py",
    ],
)
def test_no_library_writes_to_standard_error(words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    done = anyrig(*words.replace("train.py", str(tmp_path / "train.py")).split())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_rehearsed_program_ends_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS + ENDS)
    (tmp_path / "folder").mkdir()
    words = ("rehearse", "--quiet", "--rig", "T4", str(tmp_path / "train.py"))
    done = anyrig(*words, TMPDIR=str(tmp_path / "folder"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["end", "handler", "destructor of the log"]
    assert [*(tmp_path / "folder").iterdir()] == []  # the folder through which GPUs are shared


def test_a_profiler_around_a_command_goes_on_after_the_command() -> None:
    command = [sys.executable, "-m", "cProfile", "-m", "anyrig", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "function calls" in done.stdout
