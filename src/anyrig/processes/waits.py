"""A decorator that marks waits for other ranks on the stack of a stopped rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def waits_for_ranks(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Mark `function` as a wait for other ranks: its calls have a frame of this file.

    If other ranks timed out, the launcher blames a rank that was stopped outside any wait (see
    `places`).
    """

    @wraps(function)
    def wait(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return function(*args, **kwargs)

    return wait
