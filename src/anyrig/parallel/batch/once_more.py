"""A call of a module that leaves no trace, and what makes one call like another."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# What a module's outputs may depend on in form, besides the forms of its tensors.
_SWITCHES = (type(None), bool, str)


def describe_call(
    module: torch.nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> Hashable:
    """Return a key that is equal for calls whose outputs have one form: of the module's mode, the
    arguments' names, switches such as ``return_hidden=True``, and numbers of dimensions.
    """
    values = (*inputs, *named.values())
    return module.training, len(inputs), *named, *map(_form_of, values)


def _form_of(value: Any) -> Hashable:
    if isinstance(value, _SWITCHES):
        return value
    if isinstance(value, Tensor):
        return value.dim()
    return type(value).__qualname__


@contextmanager
def without_trace(module: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Let a module be called within so that the next call is as if it had not been.

    Without gradients. Buffers are copies within; random numbers and the modules' attributes are
    afterwards what they were before. What hooks do, and what the module does to lists and other
    objects that it has, stays.

    Args:
        module: lies on `device`.
        device: with its index.
    """
    attributes = [(each.__dict__, dict(each.__dict__)) for each in module.modules()]
    buffers = [(each._buffers, dict(each._buffers)) for each in module.modules()]
    copies: dict[int, Tensor] = {}
    python_numbers = random.getstate()
    try:
        with (
            torch.random.fork_rng([device], device_type=device.type),
            torch.no_grad(),
        ):
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
