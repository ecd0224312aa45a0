"""What code refers to, and whether imported code is the same in another process.

A worker imports the classes and functions that it can import. A script may have replaced a method
or assigned a global of their modules, which the worker does not know: its results would differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from ....errors import SpreadError
from ....transfer.tree import ATOM_TYPES

_MISSING = object()
_OF_LIBRARIES = ("torch", "builtins")  # a script that changes these is not noticed


def names_in_code(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in code, and in the functions within it."""
    names: set[str] = set()
    left = [code]
    while left:
        each = left.pop()
        names.update(each.co_names)
        left += [constant for constant in each.co_consts if isinstance(constant, CodeType)]
    return names


def classes_of(modules: Iterable[nn.Module], loss: Any) -> list[type]:
    """Return the classes of modules and the loss, and their bases, except PyTorch's."""
    values = [*modules, *([] if loss is None else [loss])]
    classes = dict.fromkeys(cls for value in values for cls in type(value).__mro__)
    return [cls for cls in classes if cls.__module__.partition(".")[0] not in _OF_LIBRARIES]


def functions_of(modules: Iterable[nn.Module], loss: Any) -> dict[str, FunctionType]:
    """Return the methods of the classes of modules and the loss, by names; not those of PyTorch."""
    found: dict[str, FunctionType] = {}
    if isinstance(loss, FunctionType):
        found[f"{loss.__module__}.{loss.__qualname__}"] = loss
    for cls in classes_of(modules, loss):
        for name, value in vars(cls).items():
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType):
                found[f"{cls.__module__}.{cls.__qualname__}.{name}"] = function
    return found


def constants_of(function: FunctionType) -> Iterator[str]:
    """Yield the names of the globals with plain values to which a function refers."""
    for name in names_in_code(function.__code__):
        if type(function.__globals__.get(name, _MISSING)) in ATOM_TYPES:
            yield name


def facts_of(functions: Mapping[str, FunctionType]) -> dict[str, Any]:
    """Return what must be equal in all processes: code, and the plain values that it reads."""
    facts: dict[str, Any] = {}
    for name, function in functions.items():
        facts[name] = function.__code__.co_code
        for constant in constants_of(function):
            facts[f"{function.__module__}.{constant}"] = function.__globals__[constant]
    return facts


def require_equal_code(here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Raise SpreadError if this process has imported other code than the one that sent `there`."""
    for name, fact in there.items():
        if here.get(name, _MISSING) != fact:
            what = "code" if isinstance(fact, bytes) else f"value, {fact!r} instead of"
            found = "" if isinstance(fact, bytes) else f" {here.get(name)!r}"
            raise SpreadError(
                f"{name} has other {what}{found} when it is imported: the script has replaced it "
                "after its import, which other processes do not know. Make it an attribute of the "
                "module; or use the threads of plan=Replicas()"
            )
