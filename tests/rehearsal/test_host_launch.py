"""`--host-launch`: the clock takes the time of the host that the user gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from anyrig.virtual.clock_settings import measure_host_seconds
from forked_programs import run_anyrig

# 64 operators of one kernel a step, each shorter than its launch, in one process or in two ranks.
PROGRAM = """
import torch
x = torch.ones(4, device="cuda")
optimizer = torch.optim.SGD([x.requires_grad_()], 0.0)
for _ in range(4):
    with torch.no_grad():
        for _ in range(64):
            x.mul_(1.0)
    optimizer.step()
"""


def step_seconds(folder: Path, *flags: str, rig: str = "T4") -> float:
    """Return how long the program's typical step takes."""
    script, facts = folder / "train.py", folder / "facts.json"
    script.write_text(PROGRAM)
    done = run_anyrig("rehearse", "--rig", rig, *flags, "--json", str(facts), str(script))
    assert done.returncode == 0, done.stderr
    found = json.loads(facts.read_text())
    assert (found["clock"]["host_launch_seconds"] is None) == ("--host-launch" not in flags)
    return float(found["typical_step"]["seconds"])


def test_steps_of_small_kernels_take_as_long_as_the_host(tmp_path: Path) -> None:
    assumed = step_seconds(tmp_path)
    assert assumed == pytest.approx(64 * 10e-6, rel=0.05)
    assert step_seconds(tmp_path, "--host-launch", "20us") == pytest.approx(2 * assumed, rel=0.02)


def test_ranks_and_compared_rigs_take_the_given_time(tmp_path: Path) -> None:
    flags = ("--nproc-per-node", "2", "--host-launch", "40us")
    ranks = step_seconds(tmp_path, *flags, rig="2xT4")
    assert ranks == pytest.approx(64 * 40e-6, rel=0.05)
    words = ("--quiet", "--rig", "T4", "--host-launch", "40us", str(tmp_path / "train.py"))
    done = run_anyrig("rehearse", "compare", *words)
    assert f"{1e3 * ranks:.2f} ms" in done.stdout


@pytest.mark.parametrize("command", [("rehearse",), ("rehearse", "compare")])
def test_a_time_without_a_unit_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    done = run_anyrig(*command, "--rig", "T4", "--host-launch", "5", str(script))
    assert done.returncode == 2
    assert "--host-launch: cannot read '5' as a time" in " ".join(done.stderr.split())


def test_an_operator_takes_the_host_some_time() -> None:
    assert 1e-8 < measure_host_seconds(torch.device("cpu")) < 1e-2


@pytest.mark.skipif(torch.accelerator.is_available(), reason="measures on the GPU that is here")
def test_nothing_is_measured_without_a_gpu() -> None:
    done = run_anyrig("virtual", "measure-launch")
    assert done.returncode == 1
    assert "launches cannot be measured without one" in done.stderr
