"""A custom backward pass in a chain of blocks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.split.chain_of import chain_of


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return -ctx.factor * g * x, None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * 7


kept_apply = Reversed.apply


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(Rounded.apply(x / self.scale) * self.scale)
        return out


class Halves(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = (nn.Sequential(*[Layer() for _ in range(3)]) for _ in range(2))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        h = self.between(h)
        out: Tensor = self.b(h)
        return out


def double(x: Tensor) -> Tensor:
    y: Tensor = x * 1
    other = Doubled.apply(y)
    return y + other


@pytest.mark.parametrize(
    "between",
    [Rounded.apply, lambda x: Reversed.apply(x, 0.5), lambda x: kept_apply(x, 0.5), double],
)
def test_a_custom_backward_runs(between: Callable[[Tensor], Tensor]) -> None:
    module = Halves(between).double()
    one = copy.deepcopy(module)
    chain = chain_of(module)
    assert len(chain.blocks) >= 4
    x = torch.randn(5, 4, dtype=torch.float64)
    out, expected = chain.compute(x), one(x)
    assert torch.equal(out, expected)
    out.pow(2).sum().backward()
    expected.pow(2).sum().backward()
    for name, p in one.named_parameters():
        grad = module.get_parameter(name).grad
        assert p.grad is not None, name
        assert grad is not None, name
        assert torch.equal(grad, p.grad), name


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x) * 1
        h = self.b(x)
        Doubled.apply(x)
        return self.c(h) + x


def test_a_function_that_changes_its_argument_keeps_it_in_one_block() -> None:
    with pytest.raises(SpreadError, match="'b', because a value is changed"):
        chain_of(Apart(), ["b"])
