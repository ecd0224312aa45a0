"""Modules that return what a function makes of a layer's output, spread over two GPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from trained_models import first_devices

import anyrig


class Calling(nn.Module):
    """A layer, and a function of its output."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.linear(x))


def spread(module: nn.Module, **options: Any) -> Any:
    return anyrig.spread(module, first_devices(2), **options)


def inputs(samples: int = 6, width: int = 4) -> Tensor:
    return torch.randn(samples, width, dtype=torch.float64, device="cuda:0")
