"""A model in a pipeline, and the same model on one device, which the tests compare."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

import anyrig
from anyrig.parallel.plans import Pipeline

TOLERANCE = 1e-9


def rig_of(devices: int) -> anyrig.Rig:
    return anyrig.Rig.parse(",".join(f"cuda:{index}" for index in range(devices)))


def planned(options: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `spread`: those of `Pipeline` are put into its plan."""
    names = {each.name for each in fields(Pipeline)} & options.keys()
    plan = Pipeline(**{name: options[name] for name in names})
    return {"plan": plan} | {name: options[name] for name in options.keys() - names}


class Beside:
    """A module on one device, and a copy of it in a pipeline.

    Attributes:
        one: on ``cuda:0``, in float64.
        several: the module that is in the pipeline.
        model: what `spread` returned.
    """

    def __init__(self, module: nn.Module, devices: int, loss: Any = None, **options: Any) -> None:
        self.one = copy.deepcopy(module).double().to("cuda:0")
        self.several = copy.deepcopy(module).double()
        self.loss = loss
        self.model: Any = anyrig.spread(
            self.several, rig_of(devices), loss=loss, **planned(options)
        )

    def step(self, x: Tensor, y: Tensor, factor: float = 1.0) -> float:
        """Train both modules on a batch, and return the greatest difference."""
        xs = [x.clone().requires_grad_(x.is_floating_point()) for _ in range(2)]
        there = [t.to("cuda:0") for t in (xs[0], y)]
        losses = [self.reduce(self.loss(self.one(there[0]), there[1])), self.model(xs[1], target=y)]
        for loss in losses:
            (loss * factor).sum().backward()
        return max(
            difference(*losses), difference(xs[0].grad, xs[1].grad), self.compare_gradients()
        )

    @staticmethod
    def reduce(value: Any) -> Tensor:
        return value[0] / value[1] if isinstance(value, tuple) else value

    def compare_gradients(self) -> float:
        pairs = zip(self.one.named_parameters(), self.several.named_parameters(), strict=True)
        return max(difference(a.grad, b.grad) for (_, a), (_, b) in pairs)

    def compare_states(self) -> float:
        ours, theirs = self.several.state_dict(), self.one.state_dict()
        assert ours.keys() == theirs.keys() == self.model.state_dict().keys()
        return max(difference(ours[name], theirs[name]) for name in ours)


def difference(one: Tensor | None, other: Tensor | None) -> float:
    """Return the greatest difference, relative to the greatest number above one."""
    if one is None or other is None:
        assert one is other, "one of two gradients is missing"
        return 0.0
    assert one.shape == other.shape
    if not one.numel():
        return 0.0
    one, other = one.detach().cpu().double(), other.detach().cpu().double()
    return float((one - other).abs().max() / max(1.0, float(one.abs().max())))


def perceptron(layers: int = 8, width: int = 6, classes: int = 5) -> nn.Sequential:
    """Return layers with buffers, and an in-place activation at every boundary."""
    torch.manual_seed(0)
    steps: list[nn.Module] = []
    for _ in range(layers - 1):
        steps += [nn.Linear(width, width), nn.ReLU(inplace=True)]
    return nn.Sequential(*steps, nn.Linear(width, classes))


def batch(samples: int, width: int = 6, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, width, dtype=torch.float64, generator=generator)
    return x, torch.randint(classes, (samples,), generator=generator)


def devices_of(module: nn.Module) -> Sequence[str]:
    return list(dict.fromkeys(str(parameter.device) for parameter in module.parameters()))
