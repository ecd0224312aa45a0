"""Effects of a traced forward other than its operations: attributes and random numbers."""

from __future__ import annotations

import random
import sys
from typing import Any

from torch import nn

from .refusal import Place


def has_hooks(m: nn.Module) -> bool:
    """Return whether calling `m` runs hooks."""
    return bool(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
    )


def copy_attributes(m: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return the attributes of a module, and copies of its lists, dicts and sets."""
    return {
        name: (value, type(value)(value) if type(value) in (list, dict, set) else None)
        for name, value in vars(m).items()
    }


def find_change(m: nn.Module, before: dict[str, tuple[Any, Any]]) -> str | None:
    """Return the name of an attribute that has changed, or None."""
    now = vars(m)
    for name in now.keys() | before.keys():
        if name not in now or name not in before or now[name] is not before[name][0]:
            return name
        value, copied = before[name]
        if copied is None:
            continue
        same = len(value) == len(copied) and all(
            a is b and (not isinstance(value, dict) or value[a] is copied[b])
            for a, b in zip(value, copied, strict=True)
        )
        if not same:
            return name
    return None


def restore_attributes(m: nn.Module, before: dict[str, tuple[Any, Any]]) -> None:
    """Undo changes of attributes."""
    for value, copied in before.values():
        if isinstance(copied, list):
            value[:] = copied
        elif copied is not None:
            value.clear()
            value.update(copied)
    vars(m).clear()
    vars(m).update({name: value for name, (value, _) in before.items()})


def read_random_state() -> tuple[Any, ...]:
    """Return the state of Python's and NumPy's random numbers; PyTorch's calls are recorded."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate(), None
    kind, keys, *rest = numpy.random.get_state()
    return random.getstate(), (kind, tuple(keys.tolist()), *rest)


def restore_random_state(state: tuple[Any, ...]) -> None:
    """Undo draws of random numbers."""
    random.setstate(state[0])
    numpy = sys.modules.get("numpy")
    if numpy is not None and state[1] is not None:
        numpy.random.set_state(state[1])


def place_of(m: nn.Module) -> Place:
    """Return where the forward of a module begins."""
    code = getattr(type(m).forward, "__code__", None)
    return Place(code.co_filename, code.co_firstlineno) if code else Place("", 0)
