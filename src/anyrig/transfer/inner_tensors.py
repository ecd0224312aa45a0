"""Tensors that wrap other tensors, such as quantised weights.

::

    TwoTensor        no memory of its own
      ├── a          a plain tensor, or a wrapper again
      └── b

PyTorch's protocol for such classes is ``__tensor_flatten__``, which names the inner tensors, and
``__tensor_unflatten__``. See `torch.testing._internal.two_tensor` and torchao.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# What differs between processes and devices: addresses, and devices as text and as objects.
_PLACE = re.compile(
    r" at 0x[0-9a-fA-F]+|device\(type='\w+'(?:, index=\d+)?\)|\b(?:cuda|xpu|mps|cpu):\d+"
)


def is_wrapper(value: object) -> bool:
    """Return whether a value is a tensor that wraps others; a `DTensor` is not meant."""
    return (
        isinstance(value, Tensor)
        and type(value) is not Tensor
        and hasattr(value, "__tensor_flatten__")
        and not hasattr(value, "full_tensor")
    )


def flatten_wrapper(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the plain tensors in a wrapper, under names such as ``"weight.scale"``.

    The tensors share the wrapper's memory. A tensor that wraps none is yielded itself.
    """
    if not is_wrapper(tensor):
        yield name, tensor
        return
    wrapper: Any = tensor
    for attribute in wrapper.__tensor_flatten__()[0]:
        yield from flatten_wrapper(f"{name}.{attribute}", getattr(wrapper, attribute))


def describe_wrapper_type(tensor: Tensor) -> str:
    """Return the class of a wrapper, and whatever its inner tensors do not say, as text.

    Two wrappers with equal descriptions and equal inner tensors have equal values.
    """
    wrapper: Any = tensor
    attributes, context = wrapper.__tensor_flatten__()
    inner = [
        describe_wrapper_type(each) if is_wrapper(each) else ""
        for each in (getattr(wrapper, attribute) for attribute in attributes)
    ]
    parts = [class_of(tensor), str(tensor.dtype), str(tuple(tensor.shape)), repr(context), *inner]
    return _PLACE.sub("", "; ".join(part for part in parts if part))


def class_of(tensor: Tensor) -> str:
    """Return the name of a tensor's class, which `torch.nn.Parameter` may hide."""
    kind = type(tensor)
    return f"{kind.__module__}.{kind.__qualname__}"


def map_wrapper(tensor: Tensor, change: Any) -> Tensor:
    """Return a wrapper around the results of ``change(inner tensor)``."""
    if not is_wrapper(tensor):
        changed: Tensor = change(tensor)
        return changed
    wrapper: Any = tensor
    attributes, context = wrapper.__tensor_flatten__()
    inner = {each: map_wrapper(getattr(wrapper, each), change) for each in attributes}
    made: Tensor = type(wrapper).__tensor_unflatten__(
        inner, context, tensor.size(), tensor.stride()
    )
    return made


def has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor's elements lie in memory of its own; False for every wrapper."""
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return True
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return True
    try:
        return tensor.untyped_storage().data_ptr() != 0
    except (NotImplementedError, RuntimeError):
        return False
