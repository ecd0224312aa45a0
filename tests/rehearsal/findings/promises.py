"""Training runs, and the check that a finding promises what its remedy saves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from anyrig.rehearsal.facts import Facts, Finding
from anyrig.rehearsal.findings.analysis import Analysis, analyse
from anyrig.rehearsal.process_record import merge_records
from anyrig.rehearsal.watching import Watch, facts_about
from anyrig.virtual.installed import installation

BF16 = torch.bfloat16
Step = Callable[[], object]


class Layers(nn.Module):
    """Linear layers of one width, and activations."""

    def __init__(self, width: int = 4096, count: int = 4, dtype: torch.dtype = BF16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, dtype=dtype) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def training(model: nn.Module, batch: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return a training step, which returns the sum of the model's outputs."""
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> Tensor:
        loss: Tensor = model(batch()).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def on_gpu(*shape: int, dtype: torch.dtype = BF16) -> Callable[[], Tensor]:
    """Return a function that returns the same batch each time."""
    batch = torch.ones(*shape, device="cuda", dtype=dtype)
    return lambda: batch


def watched(step: Step, steps: int = 5) -> tuple[Watch, Facts]:
    """Run some steps; return what was recorded, and what was found in it."""
    watching = Watch()
    watching.start()
    for _ in range(steps):
        step()
    watching.stop()
    installed = installation()
    assert installed is not None
    return watching, watching.facts(facts_about("", [], installed))


def analysis_of(watching: Watch, facts: Facts) -> Analysis | None:
    """Return the analysis of a record, for steps that take as long as the facts say."""
    installed = installation()
    assert installed is not None
    processes = [watching.record()]
    return analyse(merge_records(processes), processes, installed.rig, facts)


def rehearse(step: Step, steps: int = 5) -> Facts:
    """Run some steps. Their schedule is that of the record, so that savings can be computed."""
    watching, facts = watched(step, steps)
    assert analysis_of(watching, facts) is not None
    return facts


def seconds_of(facts: Facts) -> float:
    """Return how long a typical step takes."""
    assert facts.typical_step is not None
    return facts.typical_step.seconds


def check_promise(
    code: str,
    fault: Step,
    remedied: Step,
    line: str,
    samples_more: float = 1.0,
    steps: int = 5,
) -> Finding:
    """Check that the fault is the one finding, and that the remedy saves what was promised.

    Args:
        code: of the finding.
        fault: a step with the fault.
        remedied: a step without it, which has no findings.
        line: the finding's line.
        samples_more: how many times as many samples the remedied step has.
        steps: how many are run.
    """
    before, after = rehearse(fault, steps), rehearse(remedied, steps)
    assert after.findings == ()
    (finding,) = before.findings
    assert (finding.code, finding.line) == (code, line)
    saved = seconds_of(before) - seconds_of(after) / samples_more
    assert saved >= 0.02 * seconds_of(before)
    assert finding.saved_seconds == pytest.approx(saved, abs=0.02 * seconds_of(before))
    return finding


def line_of(thing: Callable[..., object] | type, text: str) -> str:
    """Return the first line with a text in the source of a function or class."""
    lines, first = inspect.getsourcelines(thing)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"{Path(inspect.getsourcefile(thing) or '').name}:{first + number}"
