"""What every rank does in the tests of `test_pipeline_over_ranks.py`."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import anyrig
from anyrig.parallel.pipeline.over_ranks.elsewhere import Elsewhere

TOLERANCE = 1e-9
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v")


class Pair:
    """A module in a pipeline over the ranks, and the same alone on each rank."""

    def __init__(self, module: nn.Module, loss: Any = None, **options: Any) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = anyrig.Rig.detect().lead.torch_device
        self.module, self.loss = module.double(), loss
        self.one = copy.deepcopy(module).to(self.device)
        if self.rank:  # whose parameters do not count
            with torch.no_grad():
                for parameter in self.module.parameters():
                    parameter.zero_()
        self.model: Any = anyrig.spread(self.module, loss=loss, **{"how": "pipeline", **options})
        self.row = self.rank * options.get("replicas", 1) // self.ranks

    def step(self, x: Tensor, y: Tensor, factor: float = 1.0, rows: Any = None) -> None:
        """Train both on a global batch; compare losses and gradients."""
        mine = slice(None)
        if rows is not None:
            start = sum(rows[: self.row])
            mine = slice(start, start + rows[self.row])
        loss = self.model(x[mine], target=y[mine])
        alone = self.loss(self.one(x.to(self.device)), y.to(self.device))
        close(loss, alone)
        for each in (loss, alone):
            (each * factor).backward()
        self.compare_gradients()

    def own(self) -> dict[str, Tensor]:
        """Return the parameters that this rank has."""
        named = self.model.named_parameters()
        return {name: each for name, each in named if not isinstance(each, Elsewhere)}

    def compare_gradients(self) -> None:
        alone = dict(self.one.named_parameters())
        assert list(alone) == [name for name, _ in self.model.named_parameters()]
        for name, parameter in self.own().items():
            close(parameter.grad, alone[name].grad, name)

    def compare_states(self) -> None:
        ours, theirs = self.model.state_dict(), self.one.state_dict()
        assert list(ours) == list(theirs)
        for name, value in ours.items():
            if not isinstance(value, Elsewhere):
                close(value, theirs[name], name)


def close(one: Tensor | None, other: Tensor | None, what: str = "") -> None:
    assert (one is None) == (other is None), f"{what}: one of two gradients is missing"
    if one is None or other is None:
        return
    assert one.shape == other.shape and one.dtype == other.dtype, what
    one, other = one.detach().cpu(), other.detach().cpu()
    scale = max(1.0, float(other.abs().max()) if other.numel() else 0.0)
    error = float((one - other).abs().max()) / scale if one.numel() else 0.0
    assert error < TOLERANCE, f"{what} is off by {error:.1e}"


def perceptron(layers: int = 8, width: int = 6, classes: int = 5) -> nn.Sequential:
    """Layers with an activation in place at every boundary."""
    steps: list[nn.Module] = []
    for _ in range(layers - 1):
        steps += [nn.Linear(width, width), nn.ReLU(inplace=True)]
    return nn.Sequential(*steps, nn.Linear(width, classes))


def batch(samples: int, width: int = 6, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, width, dtype=torch.float64, generator=generator)
    return x, torch.randint(classes, (samples,), generator=generator)


def case_schedules() -> None:
    for schedule in SCHEDULES:
        for micro_batches in (1, 3, 8):
            pair = Pair(
                perceptron(16),
                nn.CrossEntropyLoss(),
                schedule=schedule,
                micro_batches=micro_batches,
            )
            for samples in (9, 9, 3, 9):
                pair.step(*batch(samples))
                pair.step(*batch(samples), factor=0.5)  # accumulates
