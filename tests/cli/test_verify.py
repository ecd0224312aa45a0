"""`anyrig verify`, from the command line to its exit status."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anyrig.cli import verify as command
from anyrig.cli.app import app
from anyrig.rehearsal.rehearsal import Rehearsal
from anyrig.verification.script_runs import Ended, ScriptRuns
from anyrig.verification.verdict import Verdict
from anyrig.virtual.build import build_extension
from forked_programs import run_anyrig

RANKS = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 10), torch.randint(5, (64,)))
model = nn.Sequential(nn.Linear(10, 16), nn.Dropout(0.1), nn.Linear(16, 5)).to(device)
model = DistributedDataParallel(model)
torch.manual_seed(dist.get_rank())
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for x, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    (loss * dist.get_world_size()).backward()
    optimizer.step()
raise SystemExit("ran on after the last step to compare")
"""

ONE_PROCESS = """
import sys, torch
from torch import nn

model = nn.DataParallel(nn.Linear(6, 3).cuda().to(torch.float32))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(int(sys.argv[1])):
    x = torch.randn(8, 6, dtype=torch.float32)
    optimizer.zero_grad()
    model(x.cuda()).square().mean().backward()
    optimizer.step()
    print("step", step)
"""


def verify(*words: str) -> subprocess.CompletedProcess[str]:
    build_extension()
    return run_anyrig("verify", *words)


def test_ranks_that_sum_gradients(tmp_path: Path) -> None:
    script, report = tmp_path / "train.py", tmp_path / "verdict.json"
    script.write_text(RANKS)
    flags = ["--rig", "2x1GiB", "--nproc-per-node", "gpu", "--steps", "1", "--json", str(report)]
    done = verify(*flags, str(script))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "gradient 2.weight of Linear, train.py:17, backward in train.py:18" in done.stdout
    assert "summed over the 2 ranks, not averaged" in done.stdout
    facts = json.loads(report.read_text())
    assert facts["finding"]["cause"]["code"] == "factor"
    assert (facts["exit_code"], facts["world_size"], facts["dtype"]) == (1, 2, "float64")


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_exit_status_is_the_verdicts_and_one_gpu_is_the_first_of_the_rig(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigs: list[str] = []

    def run_here(rehearsal: Rehearsal, environment: object) -> Ended:
        rigs.append(str(rehearsal.rig))
        return Ended(0)

    def run_both(runs: ScriptRuns) -> Verdict:
        runs.on_rig()
        runs.on_one()
        return Verdict(status)

    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "FATAL")  # the command sets it for its process
    monkeypatch.setattr(command, "_run_here", run_here)
    monkeypatch.setattr(ScriptRuns, "verify", run_both)
    script = tmp_path / "train.py"
    script.touch()
    done = CliRunner().invoke(app, ["verify", "--rig", "2xT4+A100-40GB", str(script)])
    assert done.exit_code == status, done.output
    assert rigs == ["2xT4+A100-40GB", "T4"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["9"], 0, "3 steps of one process, in float32"),
        (["nine"], 2, "ValueError: invalid literal"),
        (["0"], 2, "no optimizer's step was seen on the rig"),
    ],
    ids=["same", "fails", "no steps"],
)
def test_a_script_of_one_process(words: list[str], status: int, text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ONE_PROCESS)
    done = verify("--rig", "2x1GiB", str(script), *words)
    assert done.returncode == status, done.stdout + done.stderr
    assert text in done.stdout
