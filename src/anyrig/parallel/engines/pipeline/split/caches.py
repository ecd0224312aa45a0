"""Caches of a module's code, such as `functools.lru_cache`, where a recording leaves stand-ins."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from torch import fx

from .refusal import is_of_caller

_LINKS = ("dict", "list", "tuple", "_lru_list_elem")
# From a cache to its dict, to a link of its list, to a result, to an item of the result.
_DEPTH = 4


def clear_caches_of_stand_ins() -> None:
    """Empty all caches of functions that hold stand-ins; later calls compute their results again.

    Otherwise the module itself would get a stand-in from its cache in a later call.
    """
    wrapper = type(functools.lru_cache(_nothing))
    # After gc.freeze(), `gc` does not list what was made before.
    for each in (*gc.get_objects(), *_in_modules()):
        if type(each) is wrapper and each.cache_info().currsize and _holds(each, _DEPTH):
            each.cache_clear()


def _in_modules() -> Iterator[Any]:
    """Yield what modules outside PyTorch, and their classes, have."""
    for name, module in list(sys.modules.items()):
        if not issubclass(type(module), ModuleType):
            continue
        if not is_of_caller(vars(module).get("__file__") or "<built-in>"):
            continue
        for each in list(vars(module).values()):
            yield each
            if issubclass(type(each), type) and each.__module__ == name:
                for held in list(vars(each).values()):
                    yield held.__func__ if type(held) in (staticmethod, classmethod) else held


def _nothing() -> None:
    """Do nothing."""


def _holds(container: Any, depth: int) -> bool:
    for each in gc.get_referents(container):
        if issubclass(type(each), fx.Proxy):
            return True
        if depth and type(each).__name__ in _LINKS and _holds(each, depth - 1):
            return True
    return False
