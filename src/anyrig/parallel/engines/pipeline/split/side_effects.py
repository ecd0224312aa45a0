"""Effects of a traced forward other than its operations: attributes and random numbers."""

from __future__ import annotations

import ast
import contextvars
import copy
import itertools
import random
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .refusal import Place

_CONTAINERS = (list, dict, set, OrderedDict)


def has_hooks(m: nn.Module) -> bool:
    """Return whether calling `m` runs hooks."""
    return bool(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
    )


def read_collections() -> dict[contextvars.ContextVar[Any], Any]:
    """Return the lists, sets and dicts that context variables hold.

    An empty dict names nothing to collect: the models of transformers set one in each call.
    """
    return {
        variable: value
        for variable, value in contextvars.copy_context().items()
        if isinstance(value, (list, set)) or (isinstance(value, dict) and value)
    }


def copy_attributes(m: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return the attributes of a module, and copies of its lists, dicts and sets."""
    return {name: (value, _copy(value)) for name, value in vars(m).items()}


def find_change(m: nn.Module, before: dict[str, tuple[Any, Any]]) -> str | None:
    """Return the name of an attribute that has changed, or None."""
    now = vars(m)
    for name in now.keys() | before.keys():
        if name not in now or name not in before or now[name] is not before[name][0]:
            return name
        value, copied = before[name]
        if type(value) not in _CONTAINERS:
            if read_hidden_state(value) != copied:
                return name
            continue
        same = len(value) == len(copied) and all(
            a is b and (not isinstance(value, dict) or value[a] is copied[b])
            for a, b in zip(value, copied, strict=True)
        )
        if not same:
            return name
    return None


def read_hidden_state(value: Any) -> Any:
    """Return the state of a generator of random numbers or of a counter; None for others."""
    if isinstance(value, random.Random):
        return value.getstate()
    if type(value) is itertools.count:
        return repr(value)
    if type(value).__name__ in ("Generator", "RandomState") and _is_of_numpy(value):
        state = copy.deepcopy(_bits_of(value).state)
        return _BitsState(repr(state), state)
    return None


def _restore_hidden_state(value: Any, state: Any) -> None:
    """Undo draws."""
    if isinstance(value, random.Random):
        value.setstate(state)
    elif isinstance(state, _BitsState):
        _bits_of(value).state = state.state


@dataclass(frozen=True)
class _BitsState:
    text: str
    state: Any = field(compare=False)


def _is_of_numpy(value: Any) -> bool:
    return type(value).__module__.startswith("numpy.random")


def _bits_of(value: Any) -> Any:
    """Return what draws the bits of NumPy's `Generator` or `RandomState`."""
    return getattr(value, "bit_generator", None) or value._bit_generator


def _copy(value: Any) -> Any:
    return type(value)(value) if type(value) in _CONTAINERS else read_hidden_state(value)


def _as_before(value: Any, state: Any) -> Any:
    """Return an attribute, or a counter that begins where it did."""
    if type(value) is not itertools.count or repr(value) == state:
        return value
    return itertools.count(*ast.literal_eval(f"({state.removeprefix('count(')[:-1]},)"))


def restore_attributes(m: nn.Module, before: dict[str, tuple[Any, Any]]) -> None:
    """Undo changes of attributes."""
    for value, copied in before.values():
        if type(value) is list:
            value[:] = copied
        elif type(value) in _CONTAINERS:
            value.clear()
            value.update(copied)
        elif copied is not None:
            _restore_hidden_state(value, copied)
    vars(m).clear()
    vars(m).update({name: _as_before(value, copied) for name, (value, copied) in before.items()})


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
