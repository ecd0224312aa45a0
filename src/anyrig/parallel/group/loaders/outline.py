"""A batch without rows as text, for a rank that never had a batch.

::

    {"image": tensor (0, 3, 8),  ──▶  ["dict", [["image", ["tensor", "float32", [0, 3, 8], 0]],
     "name": []}                                 ["name", ["list", []]]]]

Not a pickle, which could run anything where it is loaded. So it takes what loaders mostly yield:
dicts, lists and tuples of dense tensors, numbers, texts and None.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from ..leaves import is_dense

_CONTAINERS = {"list": list, "tuple": tuple}
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def write_outline(batch: Any) -> bytes | None:
    """Return the text of a batch without rows; None if it has anything of another type.

    Of tensors it has the dtype and the shape, and of those without dimensions the value.
    """
    try:
        return json.dumps(_outline(batch)).encode()
    except _NotPlainError:
        return None


def read_outline(text: bytes) -> Any:
    """Return the batch, its tensors on the CPU."""
    return _batch(*json.loads(text))


class _NotPlainError(Exception):
    pass


def _outline(value: Any) -> list[Any]:
    kind = type(value)
    if kind in (list, tuple):
        return [kind.__name__, [_outline(item) for item in value]]
    if kind is dict and all(type(key) is str for key in value):
        return ["dict", [[key, _outline(item)] for key, item in value.items()]]
    if kind in (type(None), bool, int, float, str):
        return ["value", value]
    if kind is Tensor and is_dense(value) and not value.is_complex():
        if not value.dim():
            return ["tensor", str(value.dtype).removeprefix("torch."), [], value.item()]
        if not value.numel():
            return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), 0]
    raise _NotPlainError


def _batch(kind: str, *said: Any) -> Any:
    if kind == "tensor":
        dtype, shape, value = said
        return torch.full(shape, value, dtype=_DTYPES[dtype], device="cpu")
    (content,) = said
    if kind == "value":
        return content
    if kind == "dict":
        return {key: _batch(*item) for key, item in content}
    return _CONTAINERS[kind](_batch(*item) for item in content)
