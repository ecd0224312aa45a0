"""What a recording took from the modules themselves, and whether it still holds.

A recorded forward is not run again, so a later ``net.scale = 5.0``, ``net.layers.append(layer)`` or
hook would have no effect. Reads of attributes and children are noted while a module is traced, and
compared before each call. Modules that are one operation run themselves and are not compared.
Layers that were replaced are found by `known_layers`.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .....errors import SpreadError
from .refusal import is_of_this_package

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes),
    *(torch.dtype, torch.device, enum.Enum),
)
# What PyTorch has in each module; parameters, buffers and modes are read when the graph runs.
_OF_PYTORCH = frozenset([*dir(nn.Module), *vars(nn.Module())])


class RecordedFacts:
    """The attributes and children that tracing read, and the modules that it divided."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._reads: dict[tuple[int, str], tuple[nn.Module, str]] = {}
        self._divided: dict[int, nn.Module] = {}
        self._known: list[tuple[nn.Module, str, Any]] = []

    def copy(self) -> RecordedFacts:
        """Return a copy that later notes do not change."""
        other = RecordedFacts(self._names)
        other._reads, other._divided = self._reads.copy(), self._divided.copy()
        return other

    def restore(self, before: RecordedFacts) -> None:
        """Forget what was noted since the copy `before` was made."""
        self._reads, self._divided = before._reads, before._divided

    def divide(self, m: nn.Module) -> None:
        """Note that a module's forward is recorded."""
        self._divided[id(m)] = m

    @contextmanager
    def noting(self, counts: Callable[[], bool]) -> Iterator[None]:
        """Note which attributes are read within the block, and their values at the end of it.

        A read counts if ``counts()`` is true.
        """

        def read(m: nn.Module, name: str) -> Any:
            value = object.__getattribute__(m, name)
            if name in _OF_PYTORCH and name != "_modules":
                return value
            is_new = (id(m), name) not in self._reads and counts()
            if is_new and not is_of_this_package(sys._getframe(1)):
                held = name in object.__getattribute__(m, "__dict__")
                kept = isinstance(value, _PLAIN) and getattr(type(m), name, m) is value
                if held or kept:
                    self._reads[id(m), name] = m, name
            return value

        kind: Any = nn.Module
        kind.__getattribute__ = read
        try:
            yield
        finally:
            del kind.__getattribute__
        self._known = [(m, name, _copy_of(m, name)) for m, name in self._reads.values()]

    def require_same(self, module: nn.Module) -> None:
        """Raise if the recording of `module` no longer holds.

        Raises:
            SpreadError: an attribute or the children of a divided module have changed, or hooks
                were registered on it.
        """
        for m, name, before in self._known:
            if m.__dict__.get(name, m) is before:
                continue
            now = _copy_of(m, name)
            if now is not before and now != before:
                self._refuse(module, m, name, before, now)
        for key, m in self._divided.items():
            if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks:
                raise SpreadError(
                    f"hooks were registered on {self._label(module, key)} after it was divided "
                    "into stages, and would not run. Register hooks on submodules, before the "
                    "module is spread"
                )

    def _refuse(self, module: nn.Module, m: nn.Module, name: str, before: Any, now: Any) -> None:
        label = self._label(module, id(m))
        if name == "_modules":
            raise SpreadError(
                f"the children of {label} were {list(before)} when it was divided into stages, and "
                f"are {list(now)} now. Spread the module again"
            )
        raise SpreadError(
            f"{name!r} of {label} was {_show(before)} when it was divided into stages, and is "
            f"{_show(now)} now; the stages have the former value. Spread the module again, or "
            "make the value a buffer (register_buffer), which is read in each call"
        )

    def _label(self, module: nn.Module, key: int) -> str:
        name = self._names.get(key, "a module")
        return repr(name) if name else f"this {type(module).__name__}"


_GONE = "nothing"


def _copy_of(m: nn.Module, name: str) -> Any:
    """Return an attribute's value, copied so that later changes of the attribute can be found."""
    value = m.__dict__.get(name, m)
    if value is m:
        value = getattr(m, name, _GONE)
    kind = type(value)
    if kind in (float, int, bool, str):
        return value
    return tuple(value) if name == "_modules" else _frozen(value, 3)


def _frozen(value: Any, depth: int) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if not depth:
        return _Same(value)
    if type(value) in (list, tuple, set, frozenset):
        return type(value).__name__, tuple(_frozen(each, depth - 1) for each in value)
    if type(value) is dict:
        return "dict", tuple((key, _frozen(each, depth - 1)) for key, each in value.items())
    if isinstance(value, (nn.Module, torch.Tensor, type)) or callable(value):
        return _Same(value)
    fields = getattr(value, "__dict__", {})
    plain = tuple((key, each) for key, each in fields.items() if isinstance(each, _PLAIN))
    return _Same(value), plain


class _Same:
    """Equal to another `_Same` of the same object only."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)

    def __repr__(self) -> str:
        return f"a {type(self._value).__name__}"


def _show(value: Any) -> str:
    return f"{value!r:.200}"
