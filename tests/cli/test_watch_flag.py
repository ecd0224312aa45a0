"""`--watch` of `anyrig run` and `anyrig rehearse`, in one process and over ranks."""

from pathlib import Path

import pytest
import typer

from anyrig.cli.watch_flag import Watched, read_watched
from anyrig.hazards.program_watch import HazardOptions
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
    flags = ("--rig", "1xT4", "--quiet", "--watch", "hazards,fail", "--shape-only")
    done = run_anyrig("rehearse", *flags, str(script))
    assert done.returncode == 1, done.stderr
    assert "anyrig: 1 hazard found" in done.stderr
    assert "saved     train.py:4   y = x.exp()" in done.stderr
    assert "written   train.py:5   y.data.mul_(2)" in done.stderr


def test_ranks_are_compared_and_keep_the_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DIFFERS)
    flags = ("--device", "cpu", "--nproc-per-node", "2", "--watch", "hazards")
    done = run_anyrig("run", *flags, str(script))
    assert done.returncode == 0, done.stderr
    assert "anyrig: 2 hazards found" in done.stderr
    assert "seed is 0 on rank 0 and 1 on rank 1" in done.stderr
    assert "rank 0    train.py:13   loss.backward()" in done.stderr
    assert "rank 1    train.py:15   loss.backward(retain_graph=True)" in done.stderr


@pytest.mark.parametrize(
    ("texts", "watched"),
    [
        (None, Watched(None, False, False)),
        (["hazards"], Watched(HazardOptions(), False, False)),
        (["hazards,sums,fail"], Watched(HazardOptions(True, True), False, False)),
        (["profile", "hazards", "memory"], Watched(HazardOptions(), True, True)),
        (["hazards,fail", "hazards,sums"], Watched(HazardOptions(True, True), False, False)),
    ],
)
def test_the_values_of_the_flag(texts: list[str] | None, watched: Watched) -> None:
    assert read_watched(texts) == watched


@pytest.mark.parametrize("text", ["fail", "memory,fail", "hazards,", "hazards,memory", "Memory"])
def test_an_unknown_word_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"'{text}' cannot be watched; write hazards"):
        read_watched(["profile", text])


@pytest.mark.parametrize("flags", [["--watch", "memory"], ["--json", "facts.json"]])
def test_only_a_python_script_can_be_watched(flags: list[str]) -> None:
    done = run_anyrig("run", "--device", "cpu", "--no-python", *flags, "bash")
    assert done.returncode == 2
    assert "for --no-python: it runs another program than Python" in done.stderr
