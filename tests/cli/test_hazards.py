"""`--hazards` of `anyrig run` and `anyrig rehearse`, in one process and over ranks."""

from pathlib import Path

import pytest
import typer

from anyrig.cli.hazard_flags import hazard_options
from forked_programs import run_anyrig

WRITES = """
import torch
x = torch.ones(3, device="cuda", requires_grad=True)
y = x.exp()
y.data.mul_(2)
y.sum().backward()
"""

DIFFERS = """
import os
import torch
from torch.utils.data import DataLoader, DistributedSampler
rank = int(os.environ["RANK"])
data = torch.ones(8, 2)
sampler = DistributedSampler(data, num_replicas=2, rank=rank, seed=rank)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in DataLoader(data, batch_size=4, sampler=sampler):
    loss = model(x).sum()
    if rank == 0:
        loss.backward()
    else:
        loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_rehearsal_prints_the_lines_and_fails_if_asked(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WRITES)
    flags = ("--rig", "1xT4", "--quiet", "--hazards", "--fail-on-hazards", "--shape-only")
    done = run_anyrig("rehearse", *flags, str(script))
    assert done.returncode == 1, done.stderr
    assert "anyrig: 1 hazard found" in done.stderr
    assert "saved     train.py:4   y = x.exp()" in done.stderr
    assert "written   train.py:5   y.data.mul_(2)" in done.stderr


def test_ranks_are_compared_and_keep_the_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DIFFERS)
    done = run_anyrig("run", "--device", "cpu", "--nproc-per-node", "2", "--hazards", str(script))
    assert done.returncode == 0, done.stderr
    assert "anyrig: 2 hazards found" in done.stderr
    assert "seed is 0 on rank 0 and 1 on rank 1" in done.stderr
    assert "rank 0    train.py:13   loss.backward()" in done.stderr
    assert "rank 1    train.py:15   loss.backward(retain_graph=True)" in done.stderr


@pytest.mark.parametrize(
    ("hazards", "fails", "sums", "is_python", "reason"),
    [
        (False, True, False, True, "add --hazards"),
        (False, False, True, True, "add --hazards"),
        (True, False, False, False, "--no-python runs another program"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    hazards: bool, fails: bool, sums: bool, is_python: bool, reason: str
) -> None:
    with pytest.raises(typer.BadParameter, match=reason):
        hazard_options(hazards, fails, sums, is_python)


def test_nothing_is_watched_unless_asked() -> None:
    assert hazard_options(False, False, False, True) is None
