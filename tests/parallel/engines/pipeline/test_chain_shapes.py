"""Code that depends on the shapes of arguments: with an example it is recorded, and checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.split.chain_of import chain_of


class Net(nn.Module):
    def __init__(self, first: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.a = first, nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(self.first(x))
        return out


def two_dimensions(x: Tensor) -> Tensor:
    return x * 2 if x.dim() == 2 else x[:, 0] * 3


def last_size(x: Tensor) -> Tensor:
    return x * 2 if x.shape[-1] == 4 and x.ndim < 3 else x[..., :4].sum(1)


def loop(x: Tensor) -> Tensor:
    h = x[:, 0] if x.dim() == 3 else x
    for step in range(x.size(1) - 1):
        h = h * 2 + (x[:, step] if x.dim() == 3 else step)
    return h


@pytest.mark.parametrize("first", [two_dimensions, last_size, loop])
def test_code_that_depends_on_shapes_follows_the_example(first: Callable[[Tensor], Tensor]) -> None:
    flat, deep = torch.randn(5, 4), torch.randn(3, 6, 4)
    module = Net(first)
    for example, other in ((flat, deep), (deep, flat)):
        chain = chain_of(module, example=((example,), {}))
        assert len(chain.blocks) >= 4
        for x in (example, example[:2]):
            assert torch.equal(chain.compute(x), module(x))
        with pytest.raises(SpreadError, match="example of different shapes"):
            chain.compute(other)
    with pytest.raises(SpreadError, match="example="):
        chain_of(module)
