"""Code that depends on the types of values, in a chain of blocks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.split.chain_of import chain_of


class Halves(nn.Module):
    def __init__(self, between: Callable[[Any], Any]) -> None:
        super().__init__()
        self.a, self.b = (nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]) for _ in range(2))
        self.between = between

    def forward(self, x: Any) -> Any:
        return self.b(self.between(self.a(x)))


def is_instance(h: Any) -> Any:
    return h * 3 if isinstance(h, Tensor) else h


def is_no_tuple(h: Any) -> Any:
    return h[0] if isinstance(h, (tuple, list)) else h * 3


def is_tensor(h: Any) -> Any:
    return h * 3 if torch.is_tensor(h) else h


def has_type(h: Any) -> Any:
    return h * 3 if type(h) is Tensor else h


def data_has_type(h: Any) -> Any:
    return h * 3 if isinstance(h.mT, Tensor) and type(h.mT) is Tensor else h


def has_logits(h: Any) -> Any:
    h = h.logits if hasattr(h, "logits") else h * 3
    return getattr(h, "logits", h * 2)


def has_shape(h: Any) -> Any:
    return h * 3 if hasattr(h, "shape") and isinstance(h.shape[0] + 1, int) else h


CASES = [is_instance, is_no_tuple, is_tensor, has_type, data_has_type, has_logits, has_shape]


@pytest.mark.parametrize("between", CASES)
def test_tests_of_types_take_the_branch_of_a_tensor(between: Callable[[Any], Any]) -> None:
    module = Halves(between)
    one = copy.deepcopy(module)
    chain = chain_of(module)
    assert len(chain.blocks) >= 4
    x = torch.randn(5, 4)
    assert torch.equal(chain.compute(x), one(x))
    assert "type" not in globals()


class Batch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])

    def forward(self, batch: Any) -> Any:
        return self.a(batch["x"] * 2 if isinstance(batch, dict) else batch)


def test_arguments_are_of_the_types_of_the_example() -> None:
    module, x = Batch(), torch.randn(5, 4)
    chain = chain_of(module, example=(({"x": x},), {}))
    assert torch.equal(chain.compute({"x": x}), module({"x": x}))
    with pytest.raises(SpreadError, match=r"as if a value were a dict.*isinstance.*example="):
        chain.compute(x)
    chain = chain_of(module)
    assert torch.equal(chain.compute(x), module(x))
    with pytest.raises(SpreadError, match=r"as if a value were a Tensor.*is a dict"):
        chain.compute({"x": x})


def set_data(h: Any) -> Any:
    h.data = h.data * 2
    return h


def test_setting_an_attribute_of_a_value_is_refused() -> None:
    with pytest.raises(SpreadError, match=r"attribute 'data' of a value is set.*h\.data = "):
        chain_of(Halves(set_data))
