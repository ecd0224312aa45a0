"""PyTorch's engines and anyrig's, for tests of behaviours that hold for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import parallel as stock

import anyrig

Engine = Callable[..., Any]
# PyTorch's gather warns about the index with which PyTorch's scatter calls it.
quiet = pytest.mark.filterwarnings("ignore:Using -1 to represent CPU tensor is deprecated")
both = pytest.mark.parametrize(
    "engine",
    [
        pytest.param(anyrig.DataParallel, id="anyrig"),
        pytest.param(nn.DataParallel, id="stock", marks=quiet),
    ],
)
both_rooms = pytest.mark.parametrize(
    "engine",
    [pytest.param(anyrig.parallel, id="anyrig"), pytest.param(stock, id="stock", marks=quiet)],
)


def doubles(*shape: int, device: str = "cuda:0", requires_grad: bool = False) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device=device, requires_grad=requires_grad)


def assert_same_gradients(found: nn.Module, expected: nn.Module, **tolerance: float) -> None:
    for here, there in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(here.grad.cpu(), there.grad.cpu(), **tolerance)


class Returning(nn.Module):
    """Calls a function: a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
