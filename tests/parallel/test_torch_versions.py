"""The calls of custom functions are seen with each version of PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import requires
from typing import Any

import pytest
import torch
from torch import Tensor

from anyrig.parallel.torch_versions import intercept_custom_functions
from anyrig.private_names import OLDEST


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x / 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g / 2


class Times(torch.autograd.Function):
    """Has a separate `setup_context`, so torch.func can transform it, and a default argument."""

    @staticmethod
    def forward(x: Any, factor: float = 3.0) -> Any:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return g * ctx.factor, None


half, times = Half.apply, Times.apply


class LooksLikeATensor:
    """Appears to be a tensor in this file, as a value does in the code of a recorded module."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        is_here = sys._getframe(1).f_code.co_filename == __file__
        return Tensor if is_here else LooksLikeATensor


@pytest.fixture
def calls() -> Iterator[list[Any]]:
    """The intercepted calls; those with a number are left to PyTorch."""
    seen: list[Any] = []

    def intercept(cls: type, args: Any, kwargs: Any) -> Any:
        seen.append((cls, *args))
        return NotImplemented if isinstance(args[0], float) else "intercepted"

    with intercept_custom_functions(intercept):
        yield seen
    x = torch.ones(2, requires_grad=True)
    (Half.apply(x) + half(x) + Times.apply(x) + times(x)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [7, 7]  # PyTorch's functions are in place again
    assert torch.func.grad(lambda x: Times.apply(x).sum())(x).tolist() == [3, 3]


def test_each_way_to_call_a_function_is_seen(calls: list[Any]) -> None:
    value = LooksLikeATensor()
    found = [each(value) for each in (Half.apply, half, Times.apply, times)]
    assert found == ["intercepted"] * 4
    assert [each[:2] for each in calls] == [(Half, value)] * 2 + [(Times, value)] * 2
    assert not torch._C._are_functorch_transforms_active()


def test_other_calls_are_those_of_pytorch(calls: list[Any]) -> None:
    assert [each(6.0) for each in (Half.apply, half, Times.apply, times)] == [3, 3, 18, 18]
    assert len(calls) == 4


def test_an_error_of_a_function_leaves_its_calls_intercepted(calls: list[Any]) -> None:
    with pytest.raises(TypeError):
        half(6.0, "too many")
    assert half(LooksLikeATensor()) == "intercepted"


def test_the_older_way_is_needed() -> None:
    """Once this fails, `_intercept_apply_in_python` can go."""
    (oldest,) = (each for each in requires("anyrig") or () if each.startswith("torch>="))
    assert numbers(oldest.removeprefix("torch>=")) < [2, 14]
    is_in_cpp = hasattr(torch.autograd.function, "_call_custom_function_call")
    assert is_in_cpp is (numbers(torch.__version__) >= [2, 14])


def test_simulated_ranks_are_still_answered_for() -> None:
    """Once this fails, `prepare_simulated_answer` can go."""
    assert OLDEST < (2, 13)


def test_a_failed_checkpoint_still_leaves_its_hooks() -> None:
    """Once this fails, `end_checkpoint` can go."""
    assert OLDEST < (2, 13)


def numbers(version: str) -> list[int]:
    return [int(each) for each in version.split(".")[:2]]
