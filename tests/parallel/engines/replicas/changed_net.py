"""A module whose parameters, attributes and state tests change, spread over two GPUs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from trained_models import first_devices

import anyrig


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.scale = 1.0
        self.options = {"shift": 0.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) * self.scale + self.options["shift"]

    def describe(self) -> str:
        return f"scale {self.scale}"


def spread(module: nn.Module, **options: Any) -> Any:
    return anyrig.spread(module, first_devices(2), **options)
