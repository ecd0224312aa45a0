"""The type that a stand-in appears to have, and the check of that type when the graph runs.

``isinstance(h, torch.Tensor)``, ``torch.is_tensor(h)``, ``type(h) is torch.Tensor`` and
``hasattr(h, "logits")`` take the branch of the expected type: that of the example's argument, a
number for sizes, and else a tensor. The check refuses a call in which a value is of a different
type.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from .....errors import SpreadError
from .known_values import UNKNOWN
from .refusal import Place, is_of_caller
from .stand_ins import Value

# Shapes, devices and numbers: nothing changes them in place.
PLAIN_KINDS = (int, float, bool, tuple, torch.Size, torch.device, torch.dtype)


class KindCheck:
    """Raises if a value is not of the type that the recording expects.

    Args:
        kind: the type.
        exact: whether a derived type is refused.
        missing: an attribute that the value must not have; empty for none.
        place: the code that depends on the type.
    """

    def __init__(self, kind: type, exact: bool, missing: str, place: Place) -> None:
        self._kind, self._exact, self._missing, self._place = kind, exact, missing, place
        self.__name__ = self.__qualname__ = "check_kind"

    def __call__(self, value: object) -> None:
        """Raise `SpreadError` if the type differs."""
        same = type(value) is self._kind if self._exact else isinstance(value, self._kind)
        if same and not (self._missing and hasattr(value, self._missing)):
            return
        has = f" with {self._missing!r}" if same else ""
        raise SpreadError(
            f"the module was divided as if a value were a {self._kind.__name__}, but here it is a "
            f"{type(value).__name__}{has}; this decides which code runs, in {self._place}. If it "
            "is an argument, divide the module with an example of the calls that follow, "
            "example=(args, kwargs); else put this code into a submodule of its own, which then "
            "is one block"
        )


def kind_of_node(node: fx.Node, arguments: Mapping[str, type]) -> type:
    """Return the type that a node's value is expected to have."""
    if "kind" not in node.meta:
        node.meta["kind"] = _find_kind(node, arguments)
    found: type = node.meta["kind"]
    return found


def _find_kind(node: fx.Node, arguments: Mapping[str, type]) -> type:
    name = str(getattr(node.target, "__name__", node.target))
    if node.op == "placeholder":
        return arguments.get(str(node.target), Tensor)
    known = node.meta.get("known", UNKNOWN)
    if known is not UNKNOWN:
        return Tensor if isinstance(known, Tensor) else type(known)
    if name == "getattr" and node.args[1] in ("shape", "device", "dtype", "ndim"):
        fields = {"shape": torch.Size, "device": torch.device, "dtype": torch.dtype, "ndim": int}
        return fields[str(node.args[1])]
    if name == "size" and len(node.args) == 1 and not node.kwargs:
        return torch.Size
    if name in ("size", "dim", "numel", "ndimension", "len"):
        return int
    if getattr(operator, name, None) is node.target:
        kinds = {kind_of_node(each, arguments) for each in node.all_input_nodes}
        if kinds == {torch.Size} and name == "getitem":
            return tuple if isinstance(node.args[1], slice) else int
        if kinds == {int}:
            numbers = [each for each in node.args if not isinstance(each, fx.Node)]
            whole = name != "truediv" and not any(isinstance(each, float) for each in numbers)
            compares = name in ("eq", "ne", "lt", "le", "gt", "ge")
            return bool if compares else int if whole else float
    return Tensor


class _Type(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and issubclass(builtins.type(args[0]), Value):
            return args[0].tracer.expect_kind(args[0], exact=True)
        return builtins.type(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, builtins.type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, builtins.type)


class _RecordedType(metaclass=_Type):
    """Takes the place of ``type``."""


@contextmanager
def type_in_code_of(module: nn.Module) -> Iterator[None]:
    """Make ``type(h)`` in the files of a module's classes return the expected type of `h`."""
    homes = {}
    for m in module.modules():
        code = getattr(builtins.type(m).forward, "__code__", None)
        if code is not None and is_of_caller(code.co_filename):
            home = builtins.type(m).forward.__globals__
            homes[id(home)] = home
    with ExitStack() as undo:
        for home in homes.values():
            if "type" not in home:
                home["type"] = _RecordedType
                undo.callback(home.pop, "type")
        yield
