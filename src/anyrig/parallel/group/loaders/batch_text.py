"""A batch as text for other ranks: a digest of its values, or, of one without rows, its outline.

::

    {"image": tensor (0, 3, 8), "name": [], "epoch": 3}
     ──▶  {"dict": {"image": {"tensor": ["torch.float32", [0, 3, 8], 0]}, "name": {"list": []},
                    "epoch": 3}}

Not a pickle, which could run anything where it is loaded. So an outline takes what loaders mostly
yield: dicts, lists and tuples of dense tensors, numbers, texts and None.
"""

from __future__ import annotations

import ctypes
import json
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ....errors import ValueNeededError
from ..leaves import is_dense, leaves_of

_ATOMS = (type(None), bool, int, float, str)
_CONTAINERS = {"list": list, "tuple": tuple}
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def fingerprint(batch: Any) -> bytes:
    """Return a digest that is the same for two batches of equal structure and equal values.

    Objects other than tensors, numbers and texts count with their type only.
    """
    digest = blake2b(digest_size=16)
    for place, leaf in leaves_of(batch):
        for part in (leaf.data, leaf.batch_sizes) if isinstance(leaf, PackedSequence) else (leaf,):
            text, values = _describe(part)
            digest.update(f"{place}\0{type(leaf).__qualname__}\0{text}\0".encode() + values)
    return digest.hexdigest().encode()


def write_outline(batch: Any) -> bytes | None:
    """Return the text of a batch without rows; None if it has anything of another type.

    Of tensors it has the dtype and the shape, and of those without dimensions the value.
    """
    try:
        return json.dumps(_outline(batch)).encode()
    except TypeError:
        return None


def read_outline(text: bytes) -> Any:
    """Return the batch, its tensors on the CPU."""
    return _batch(json.loads(text))


def _describe(leaf: Any) -> tuple[str, bytes]:
    if not isinstance(leaf, Tensor):
        return repr(leaf) if type(leaf) in (*_ATOMS, complex, bytes) else "", b""
    text = f"{leaf.dtype} {leaf.layout}"
    if not is_dense(leaf):
        return text, b""
    text += str(tuple(leaf.shape))
    try:
        on_host = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
    except ValueNeededError:  # a rehearsal without values has none to tell apart
        return text, b""
    size = on_host.numel() * on_host.element_size()
    return text, ctypes.string_at(on_host.data_ptr(), size) if size else b""


def _outline(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind in (list, tuple):
        return {kind.__name__: [_outline(item) for item in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: _outline(item) for key, item in value.items()}}
    plain = kind is Tensor and is_dense(value) and not value.is_complex()
    if plain and not (value.dim() and value.numel()):
        return {"tensor": [str(value.dtype), [*value.shape], 0 if value.dim() else value.item()]}
    raise TypeError(f"an outline has no {kind.__name__}")


def _batch(outline: Any) -> Any:
    if type(outline) in _ATOMS:
        return outline
    ((kind, content),) = outline.items()
    if kind == "tensor":
        dtype, shape, value = content
        return torch.full(shape, value, dtype=_DTYPES[dtype], device="cpu")
    if kind == "dict":
        return {key: _batch(item) for key, item in content.items()}
    return _CONTAINERS[kind](map(_batch, content))
