"""`StandInTracer`: what stand-ins and patches ask of the recorder that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx


class StandInTracer(fx.Tracer):
    """A tracer whose values are stand-ins. `Recorder` answers.

    Attributes:
        asked: the stand-ins whose type `isinstance` is looking at, innermost last.
    """

    asked: list[Any]

    @property
    def is_computing_known(self) -> bool:
        """Whether an operation runs without data, which is not to be recorded."""
        raise NotImplementedError

    def assume_mode(self, name: str) -> bool:
        """Return the mode to trace for; a small module that branches on it is not traced."""
        raise NotImplementedError

    def expect_kind(self, value: Any, exact: bool = False, missing: str = "") -> type:
        """Return the type that a value is expected to have, and record a check of it."""
        raise NotImplementedError

    def fact(self, value: fx.Proxy, read: Callable[[Any], Any], refusal: str) -> Any:
        """Return what `read` finds in a value, by the example, and record a check of it."""
        raise NotImplementedError

    def is_live(self, value: fx.Proxy) -> bool:
        """Return whether a stand-in is of this recording, which has not ended."""
        raise NotImplementedError

    def is_plain(self, value: Any) -> bool:
        """Return whether a value is a known dtype, device, number or tuple."""
        raise NotImplementedError

    def kind_or_known(self, value: Any) -> Any:
        """Return an object that has a value's attributes: the known value, or its type."""
        raise NotImplementedError

    def name_of_tensor(self, tensor: Any) -> str | None:
        """Return the name of a parameter or buffer."""
        raise NotImplementedError

    def record_call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record a call of PyTorch that has no stand-ins among its arguments."""
        raise NotImplementedError
