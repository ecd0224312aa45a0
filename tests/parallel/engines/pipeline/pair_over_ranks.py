"""A module in a pipeline over the ranks of a group, and a copy of it on one device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from beside_one_device import planned
from torch import Tensor, nn

import anyrig
from anyrig.parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere

TOLERANCE = 1e-9


class Pair:
    """A module in a pipeline over the ranks, and a copy of it on each rank's device."""

    def __init__(self, module: nn.Module, loss: Any = None, **options: Any) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = anyrig.Rig.detect().lead.torch_device
        self.module, self.loss = module.double(), loss
        self.one = copy.deepcopy(module).to(self.device)
        if self.rank:  # only rank 0's parameters count
            with torch.no_grad():
                for parameter in self.module.parameters():
                    parameter.zero_()
        self.model: Any = anyrig.spread(self.module, loss=loss, **planned(options))
        self.row = self.rank * options.get("replicas", 1) // self.ranks

    def step(self, x: Tensor, y: Tensor, factor: float = 1.0, rows: Any = None) -> None:
        """Train both on a global batch; compare losses and gradients."""
        mine = slice(None)
        if rows is not None:
            start = sum(rows[: self.row])
            mine = slice(start, start + rows[self.row])
        loss = self.model(x[mine].cpu(), target=y[mine].cpu())
        alone = self.loss(self.one(x), y)
        close(loss, alone)
        for each in (loss, alone):
            (each * factor).backward()
        self.compare_gradients()

    def alone(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss on one device."""
        return self.loss(self.one(x), target)

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
    assert (one.shape, one.dtype) == (other.shape, other.dtype), what
    one, other = one.detach().cpu(), other.detach().cpu()
    scale = max(1.0, float(other.abs().max()) if other.numel() else 0.0)
    error = float((one - other).abs().max()) / scale if one.numel() else 0.0
    assert error < TOLERANCE, f"{what} is off by {error:.1e}"


def perceptron(layers: int = 8, width: int = 6, classes: int = 5) -> nn.Sequential:
    """Return layers with an in-place activation at every boundary."""
    steps: list[nn.Module] = []
    for _ in range(layers - 1):
        steps += [nn.Linear(width, width), nn.ReLU(inplace=True)]
    return nn.Sequential(*steps, nn.Linear(width, classes))


def batch(samples: int, width: int = 6, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, width, dtype=torch.float64, generator=generator)
    return on_device(x, torch.randint(classes, (samples,), generator=generator))


def on_device(*tensors: Tensor) -> Any:
    device = anyrig.Rig.detect().lead.torch_device
    return tuple(tensor.to(device) for tensor in tensors)


def error_of(call: Any) -> str:
    """Return the error that a call raises as text, with its class and notes."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        call()
    notes = getattr(caught.value, "__notes__", [])
    return "\n".join([f"{type(caught.value).__name__}: {caught.value}", *notes])
