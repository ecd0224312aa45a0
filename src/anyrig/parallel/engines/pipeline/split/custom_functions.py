"""Calls of ``torch.autograd.Function``, recorded whole, because they define their backward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ....torch_versions import intercept_custom_functions
from .in_place_code import function_changes_arguments


class FunctionCall:
    """Calls ``apply`` of a class derived from ``torch.autograd.Function``.

    Attributes:
        function: the class.
    """

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        self.function = function
        self.__name__ = self.__qualname__ = function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the function returns."""
        apply: Any = self.function.apply
        return apply(*args, **kwargs)

    def changes_arguments(self) -> bool:
        """Return whether the forward pass may change an argument in place."""
        forward = self.function.forward
        return function_changes_arguments(forward) or _marks_dirty(self.function)


def _marks_dirty(function: type[torch.autograd.Function]) -> bool:
    methods = (function.forward, function.setup_context)
    return any("mark_dirty" in each.__code__.co_names for each in methods)


def recorded_functions(
    create_proxy: Callable[..., fx.Proxy], records: Callable[[], bool]
) -> AbstractContextManager[None]:
    """Record the calls of ``apply`` that have stand-ins or tensors among their arguments.

    Calls are recorded while ``records()`` is true.
    """

    def record(cls: type[torch.autograd.Function], args: Any, kwargs: Any) -> Any:
        flat = pytree.tree_leaves((args, kwargs))
        if records() and any(isinstance(each, (fx.Proxy, Tensor)) for each in flat):
            return create_proxy("call_function", FunctionCall(cls), args, kwargs)
        return NotImplemented

    return intercept_custom_functions(record)
