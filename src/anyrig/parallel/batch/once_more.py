"""Calling a module without side effects, and recognizing calls of the same form."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# Arguments whose value, not only their type, may decide the form of the outputs.
_SWITCHES = (type(None), bool, str)


def describe_call(
    module: torch.nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> Hashable:
    """Return a key that is equal for calls whose outputs have the same form: the module's mode, the
    arguments' names, switches such as ``return_hidden=True``, and numbers of dimensions.
    """
    values = (*inputs, *named.values())
    return module.training, len(inputs), *named, *map(_describe, values)


def _describe(value: Any) -> Hashable:
    if isinstance(value, _SWITCHES):
        return value
    if isinstance(value, Tensor):
        return value.dim()
    return type(value).__qualname__


@contextmanager
def without_trace(module: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Call `module`, which lies on `device`, inside this context without side effects.

    Gradients are disabled. The module writes into copies of its buffers; attributes and random
    number generators are restored afterwards. The effects of hooks remain, and so do changes inside
    lists and other objects of the module.
    """
    attributes = [(each.__dict__, dict(each.__dict__)) for each in module.modules()]
    buffers = [(each._buffers, dict(each._buffers)) for each in module.modules()]
    copies: dict[int, Tensor] = {}
    python_numbers = random.getstate()
    try:
        with torch.random.fork_rng([device], device_type=device.type), torch.no_grad():
            for own, before in buffers:
                for name, buffer in before.items():
                    if buffer is not None:
                        own[name] = copies.setdefault(id(buffer), buffer.clone())
            yield
    finally:
        random.setstate(python_numbers)
        for own, before in (*buffers, *attributes):
            for name in own.keys() - before.keys():
                del own[name]
            own.update(before)
