"""Calls of ``torch.autograd.Function``, recorded whole, because they define their backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from .in_place_code import function_changes_arguments


class FunctionCall:
    """Calls ``apply`` of a class derived from ``torch.autograd.Function``.

    Attributes:
        function: the class.
    """

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        self.function = function
        self.__name__ = self.__qualname__ = function.__name__

    def __call__(self, *args: Any) -> Any:
        """Return what the function returns."""
        apply: Any = self.function.apply
        return apply(*args)

    def changes_arguments(self) -> bool:
        """Return whether the forward pass may change an argument in place."""
        forward = self.function.forward
        return function_changes_arguments(forward) or _marks_dirty(self.function)


def _marks_dirty(function: type[torch.autograd.Function]) -> bool:
    methods = (function.forward, function.setup_context)
    return any("mark_dirty" in each.__code__.co_names for each in methods)


@contextmanager
def recorded_functions(
    create_proxy: Callable[..., fx.Proxy], records: Callable[[], bool]
) -> Iterator[None]:
    """Record the calls of ``apply`` that have stand-ins or tensors among their arguments.

    Calls are recorded while ``records()`` is true.
    """
    # Private: all calls of `apply` arrive there, including those of an earlier
    # `f = SomeFunction.apply`. Without it, test_a_custom_backward_runs fails.
    home: Any = torch.autograd.function._SingleLevelFunction

    def apply(cls: type[torch.autograd.Function], *args: Any) -> Any:
        flat = pytree.tree_leaves(args)
        if records() and any(isinstance(each, (fx.Proxy, Tensor)) for each in flat):
            return create_proxy("call_function", FunctionCall(cls), args, {})
        return inherited.__get__(None, cls)(*args)

    inherited = next(k.__dict__["apply"] for k in home.__mro__ if "apply" in k.__dict__)
    try:
        home.apply = classmethod(apply)
        yield
    finally:
        del home.apply
