"""The same training on one device and in processes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from trained_models import CLASSES, WIDTH, assert_same_numbers

import anyrig

SAMPLES = 11


def spread(module: nn.Module, loss: Any = None, processes: int = 2, **options: Any) -> Any:
    plan = anyrig.Replicas(processes=processes)
    return anyrig.spread(module, "cpu", plan=plan, loss=loss, **options)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, CLASSES))


class Pair:
    """The same training on one device and in processes."""

    def __init__(self, module: nn.Module | None = None, loss: Any = None, **options: Any) -> None:
        self.one = perceptron() if module is None else module
        self.several = copy.deepcopy(self.one)
        self.loss = loss or nn.CrossEntropyLoss()
        self.model = spread(self.several, self.loss, **options)
        self.optimizers = [
            torch.optim.SGD(each.parameters(), 0.1, 0.9) for each in (self.one, self.several)
        ]

    def step(self, samples: int = SAMPLES, **given: Any) -> None:
        x, y = torch.randn(samples, WIDTH), torch.randint(CLASSES, (samples,))
        losses = [self.loss(self.one(x, **given), y), self.model(x, target=y, **given)]
        for optimizer, loss in zip(self.optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=1e-12)
        assert_same_numbers(self.several, self.one)

    def both(self, change: Callable[[nn.Module], object]) -> None:
        for module in (self.one, self.several):
            change(module)
