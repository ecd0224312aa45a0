"""What a rehearsal finds in a program that reduces gradients after its backward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from anyrig.rehearsal import Report, watch


def model() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    layers = [nn.Linear(4096, 4096, dtype=torch.bfloat16) for _ in range(4)]
    made = nn.Sequential(*layers).cuda()
    batch = torch.ones(4096, 4096, dtype=torch.bfloat16, device="cuda")
    return made, torch.optim.SGD(made.parameters(), lr=0.1), batch


def late() -> Callable[[], None]:
    made, optimizer, batch = model()

    def step() -> None:
        made(batch).sum().backward()
        for parameter in made.parameters():
            dist.all_reduce(parameter.grad)  # late
        optimizer.step()
        optimizer.zero_grad()

    return step


def overlapping() -> Callable[[], None]:
    made, optimizer, batch = model()
    works: list[Any] = []

    def reduce(parameter: torch.Tensor) -> None:
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in made.parameters():
        parameter.register_post_accumulate_grad_hook(reduce)

    def step() -> None:
        made(batch).sum().backward()
        for work in works:
            work.wait()
        works.clear()
        optimizer.step()
        optimizer.zero_grad()

    return step


def with_ddp() -> Callable[[], None]:
    made, _, batch = model()
    replica = nn.parallel.DistributedDataParallel(made, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)

    def step() -> None:
        replica(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def rehearse(step: Callable[[], None]) -> tuple[Report, float]:
    with watch() as report:
        for _ in range(5):
            step()
    assert report.facts.typical_step is not None
    return report, report.facts.typical_step.seconds


def case_gradients_reduced_after_the_backward_pass(world: Any) -> None:
    report, before = rehearse(late())
    (finding,) = report.facts.findings
    assert finding.code == "R12"
    lines, first = inspect.getsourcelines(late)
    number = first + next(i for i, line in enumerate(lines) if "# late" in line)
    assert finding.line == f"reduced_gradients.py:{number}"
    report, after = rehearse(overlapping())
    assert report.facts.findings == ()
    assert finding.saved_seconds == pytest.approx(before - after, abs=0.02 * before)


def case_gradients_reduced_by_ddp(world: Any) -> None:
    report, _ = rehearse(with_ddp())
    assert report.facts.findings == ()
