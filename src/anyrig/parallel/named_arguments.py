"""Keyword arguments of a call that are for anyrig, unless the module's forward has them too."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import BatchError


def take_target(module: torch.nn.Module, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Remove the loss's ``target=`` from a call's keyword arguments, and return its value.

    If the module's forward has an argument of this name, which `inputs` do not fill, the value
    stays in `kwargs`, so that the module gets the target, too.
    """
    place = place_of_argument(module, "target")
    if place is not None and len(inputs) <= place:
        return kwargs["target"]
    return kwargs.pop("target")


def take_samples(
    module: torch.nn.Module, kwargs: dict[str, Any], method: Callable[..., Any] | None = None
) -> int | None:
    """Remove ``samples=`` from a call's keyword arguments, and return its value.

    Return None if the call does not give it. If the module's forward, or `method`, has an argument
    of this name, the value stays in `kwargs`, and the result is None as well.

    Raises:
        BatchError: it is not a number of samples.
    """
    if "samples" not in kwargs or place_of_argument(module, "samples", method) is not None:
        return None
    samples = kwargs.pop("samples")
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 0:
        raise BatchError(
            f"samples={samples!r} is not a number of samples: give an integer, such as "
            "samples=len(x), or leave it out"
        )
    return samples


def place_of_argument(
    module: torch.nn.Module, name: str, method: Callable[..., Any] | None = None
) -> int | None:
    """Return how many positional arguments precede a named one of forward; None if it has none."""
    forward = method or module.forward
    function = getattr(forward, "__func__", None)
    place = _place_in(forward if function is None else function, name)
    return place if place is None or function is None else place - 1  # without self


@functools.lru_cache(maxsize=256)
def _place_in(function: Callable[..., Any], name: str) -> int | None:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return None
    found = parameters.get(name)
    if found is None:
        return None
    by_name = found.kind in (found.KEYWORD_ONLY, found.VAR_KEYWORD)
    return sys.maxsize if by_name else [*parameters].index(name)
