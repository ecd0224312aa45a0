"""`anyrig plan`, from the command line to the commands that it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anyrig.virtual.library_cache import cache_folder
from forked_programs import run_anyrig

TRAINS = """
import argparse
flags = argparse.ArgumentParser()
flags.add_argument("--width", type=int, default=2048)
width = flags.parse_args().width
import anyrig, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4)]
model = anyrig.spread(nn.Sequential(*layers).double(), loss=nn.MSELoss())
data = torch.randn(24, width, dtype=torch.float64)
loader = anyrig.distribute(DataLoader(TensorDataset(data), batch_size=8), model)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for (x,) in loader:
    x = x.cuda()
    loss = model(x, target=x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    anyrig.print_once(f"loss {loss.item():.9f}")  # with loss=, that of the global batch
"""
# Gives virtual GPUs to what a shell starts.
GIVES = """
import subprocess, sys
from anyrig.programs.program import Program
from anyrig.rehearsal.rehearsal import Rehearsal
from anyrig.virtual.rig import VirtualRig

with Rehearsal(Program("train.py", ()), VirtualRig.parse(sys.argv[1])).of_processes():
    sys.exit(subprocess.run(sys.argv[2], shell=True).returncode)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the script. Results go to a cache of the test's own."""
    own = tmp_path / "cache" / "anyrig"
    own.mkdir(parents=True, mode=0o755)
    (own / "virtual").symlink_to(cache_folder())  # or each test would build virtual GPUs
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(TRAINS)
    return tmp_path


def run_plan(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_anyrig("plan", *words, cwd=cwd, timeout=600)


def losses_of(command: str, rig: str, cwd: Path) -> list[float]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", GIVES, rig, command],
        cwd=cwd,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [float(text) for text in re.findall(r"loss (\S+)$", done.stdout, re.MULTILINE)]


def test_each_printed_command_trains_as_one_device(folder: Path) -> None:
    words = ["--rig", "2xT4", "--tries", "4", "train.py", "--width", "64"]
    done = run_plan(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    commands = re.findall(r"^\d: (.*)$", done.stdout, re.MULTILINE)
    assert len(commands) == 4, done.stdout
    assert sum("anyrig run --nproc-per-node 2 train.py --width 64" in one for one in commands) == 2
    assert all(one.startswith("ANYRIG_PLAN=") for one in commands)
    assert re.search(r"anyrig\.spread\(model, plan=anyrig\.\w+\(.*\)\)$", done.stdout)
    alone = losses_of("python train.py --width 64", "T4", folder)
    assert len(alone) == 3
    for command in commands:
        assert losses_of(command, "2xT4", folder) == pytest.approx(alone, abs=2e-9), command
    again = run_plan(*words, cwd=folder)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert again.stderr == ""  # nothing was rehearsed
    form = run_plan("--as", "torchrun", *words, cwd=folder)
    assert form.stdout.startswith("ANYRIG_PLAN=")


def test_a_rig_on_which_nothing_fits_leaves_the_others_their_answer(folder: Path) -> None:
    done = run_plan("--rig", "32MiB,T4", "train.py", "--width", "512", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "T4: rehearsed 1 of 1 plans" in done.stdout
    assert "train.py runs with none of 1 plans on 32MiB: OutOfMemoryError" in done.stderr
    found = re.search(r"; (ANYRIG_PLAN=\S+) anyrig (rehearse .*) shows all", done.stderr)
    assert found is not None, done.stderr
    assert found[1] == "ANYRIG_PLAN='Replicas()'"
    again = run_anyrig(*found[2].split(), cwd=folder)  # the command of the message
    assert "OutOfMemoryError" in again.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.py"], "no rig is given; write --rig 8xA100-80GB"),
        (["--rig", "2xT44", "train.py"], "--rig: no GPU is called 'T44'"),
        (["--rig", "2xT4", "--deadline", "6h", "train.py"], "--deadline 6h --samples 1e7"),
        (
            ["--rig", "2xT4", "--deadline", "6 weeks", "--samples", "10", "train.py"],
            "'6 weeks' is not a duration; write 90min, 6h or 2d",
        ),
        (["--rig", "2xT4", "--by", "price", "train.py"], "it needs --prices prices.toml"),
        (["--rig", "2xT4", "--verify", '"--x', "train.py"], "cannot be split into words"),
        (["--rig", "2xT4", "nowhere.py"], "there is no script 'nowhere.py'"),
        (["--rig", "2xT4", "--tries", "0", "train.py"], "--tries"),
    ],
)
def test_odd_flags_are_refused(words: list[str], message: str, folder: Path) -> None:
    done = run_plan(*words, cwd=folder)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
