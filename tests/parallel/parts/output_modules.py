"""Modules that return anything, spread and on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from trained_models import CLASSES, first_devices, on_lead

import anyrig


class Returning(nn.Module):
    """A linear layer; what is returned is made of its output."""

    def __init__(self, make: Callable[..., Any], width: int = CLASSES) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)
        self.make = make

    def forward(self, x: Tensor, *rest: Any) -> Any:
        return self.make(self.linear(x), *rest)


def spread_and_one(module: nn.Module, shares: Any, **options: Any) -> tuple[Any, Any, Any]:
    one, several = on_lead(module), on_lead(module)
    return (
        one,
        several,
        anyrig.spread(several, first_devices(3), plan=anyrig.Replicas(shares=shares), **options),
    )
