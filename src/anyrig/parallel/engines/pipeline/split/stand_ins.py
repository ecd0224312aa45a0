"""Stand-ins for values while a module is traced."""

from __future__ import annotations

import builtins
import dis
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.proxy import Attribute

from .refusal import CannotTraceError, find_caller, is_of_caller
from .stand_in_tracer import StandInTracer

IN_PLACE_OPERATORS = (
    *("iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift"),
    *("isub", "itruediv", "ixor"),
)


# PyTorch's functions that ask for their caller: torch.is_tensor, and that of torch.jit.isinstance.
_ASKING_FOR_CALLERS = ("is_tensor", "_isinstance")


@contextmanager
def isinstance_of_stand_ins() -> Iterator[None]:
    """Make ``isinstance(h, torch.Tensor)`` in a module's code look at the expected type of `h`."""
    real = builtins.isinstance

    def asking(value: Any, kinds: Any) -> bool:
        caller = sys._getframe(1).f_code
        asks = is_of_caller(caller.co_filename) or caller.co_name in _ASKING_FOR_CALLERS
        if not asks or not issubclass(type(value), Value):
            return real(value, kinds)
        asked = value.tracer.asked
        asked.append(value)
        try:
            return real(value, kinds)
        finally:
            asked.pop()

    builtins.isinstance = asking
    try:
        yield
    finally:
        builtins.isinstance = real


class Value(fx.Proxy):
    """Records operators as `torch.fx.Proxy` does, and in-place operators (``x += y``) as in-place.

    To the code of a module it appears to have the expected type; see `kinds`.
    """

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # C++ code asks as well. It would take the memory of a stand-in for that of a tensor.
        frame = sys._getframe(1)
        operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        is_read = operation.startswith(("LOAD_ATTR", "MATCH_CLASS"))
        recorder: Any = self.tracer
        is_asked = recorder.asked[-1] is self
        if not is_asked and not (is_read and is_of_caller(frame.f_code.co_filename)):
            return type(self)
        recorder.asked.append(None)
        try:
            return recorder.expect_kind(self)
        finally:
            recorder.asked.pop()

    def __getattr__(self, name: str) -> Any:
        frame = sys._getframe(1)
        if not name.startswith("__") and is_of_caller(frame.f_code.co_filename):
            operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if not operation.startswith(("LOAD_ATTR", "LOAD_METHOD")):  # `hasattr`, or a default
                recorder: Any = self.tracer
                if not hasattr(recorder.kind_or_known(self), name):
                    recorder.expect_kind(self, missing=name)
                    raise AttributeError(name)
        known = self.tracer.known_attribute(self, name)  # type: ignore[attr-defined]
        if known is None or isinstance(known, str):
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return ValueAttribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if is_of_caller(sys._getframe(1).f_code.co_filename):
            raise CannotTraceError(f"the attribute {name!r} of a value is set", find_caller())
        super().__setattr__(name, value)

    def __index__(self) -> int:
        number: int = self._fact(int, "a number depends on a value")
        return number

    def __int__(self) -> int:
        number: int = self._fact(int, "a number depends on a value")
        return number

    def __float__(self) -> float:
        number: float = self._fact(float, "a number depends on a value")
        return number

    def __len__(self) -> int:
        length: int = self._fact(len, "a length depends on a value")
        return length

    def __hash__(self) -> int:
        if is_of_caller(sys._getframe(1).f_code.co_filename) and self._is_plain():
            found: int = self._fact(hash, "a set or dict looks for a value")
            return found
        return id(self)

    def __eq__(self, other: object) -> Any:
        # A cache of the module's code, such as functools.lru_cache, may hold former stand-ins.
        if issubclass(type(other), Value) and not (_is_live(self) and _is_live(other)):
            return self is other
        return self.tracer.create_proxy("call_function", operator.eq, (self, other), {})

    def __round__(self, *digits: int) -> Any:
        return self.tracer.create_proxy("call_function", round, (self, *digits), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __delitem__(self, key: Any) -> None:
        self.tracer.create_proxy("call_function", operator.delitem, (self, key), {})

    def _is_plain(self) -> bool:
        recorder: Any = self.tracer
        return bool(recorder.is_plain(self))

    def _fact(self, read: Callable[[Any], Any], refusal: str) -> Any:
        recorder: Any = self.tracer
        return recorder.fact(self, read, refusal)


def _is_live(value: Any) -> bool:
    """Return whether a stand-in belongs to the present recording."""
    recorder: Any = value.tracer
    return bool(recorder.is_live(value))


def _record_in_place(name: str) -> Callable[[Value, Any], Any]:
    function = getattr(operator, name)

    def recorded(self: Value, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return recorded


for _name in IN_PLACE_OPERATORS:
    setattr(Value, f"__{_name}__", _record_in_place(_name))


class ValueAttribute(Value, Attribute):
    """An attribute of a value, or a method if it is called."""


class State(Value):
    """A parameter or buffer. Its shape is known; its values are read when the graph runs."""

    def __init__(self, node: fx.Node, tracer: StandInTracer, tensor: Tensor) -> None:
        super().__init__(node, tracer)
        self.tensor = tensor

    @property
    def shape(self) -> torch.Size:
        """The sizes."""
        return self.tensor.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.tensor.ndim

    def size(self, *args: Any) -> Any:
        """Return the sizes, or one of them."""
        return self.tensor.size(*args)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.tensor.dim()

    def numel(self) -> int:
        """Return the number of elements."""
        return self.tensor.numel()

    def __len__(self) -> int:
        return len(self.tensor)


class Mode(fx.Proxy):
    """Stands for ``module.training``: operations read its value; branches take the assumed mode."""

    def __init__(self, recorder: StandInTracer, name: str) -> None:
        self.tracer = recorder
        self.module_name = name

    @property
    def node(self) -> fx.Node:  # type: ignore[override]
        """A new node that reads the mode when it runs."""
        prefix = f"{self.module_name}." if self.module_name else ""
        recorder: Any = self.tracer
        found: fx.Node = recorder.create_node("get_attr", f"{prefix}training", (), {})
        return found

    def __bool__(self) -> bool:
        recorder: Any = self.tracer
        assumed: bool = recorder.assume_mode(self.module_name)
        return assumed
