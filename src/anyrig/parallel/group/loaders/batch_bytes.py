"""A batch as bytes for other ranks: a digest of its values, or a whole batch without samples."""

from __future__ import annotations

import ctypes
import json
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ....errors import ValueNeededError
from ....transfer.tree import ATOM_TYPES
from ...batch.cut import is_dense
from ..leaves import leaves_of

_ATOMS = (type(None), bool, int, float, str)
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def fingerprint(batch: Any) -> bytes:
    """Return a digest that is the same for two batches of equal structure and equal values.

    Only the type counts of an object that is neither a tensor, a number nor a text.
    """
    digest = blake2b(digest_size=16)
    for place, leaf in leaves_of(batch):
        for part in (leaf.data, leaf.batch_sizes) if isinstance(leaf, PackedSequence) else (leaf,):
            text, values = _describe(part)
            digest.update(f"{place}\0{type(leaf).__qualname__}\0{text}\0".encode() + values)
    return digest.hexdigest().encode()


def encode_empty(batch: Any) -> bytes | None:
    """Return a batch without samples as JSON; None if the batch has an object of another type than
    dicts, lists, tuples, dense tensors, numbers, texts and None.
    """
    try:
        return json.dumps(_outline(batch)).encode()
    except TypeError:
        return None


def decode_empty(data: bytes) -> Any:
    """Return the batch, with its tensors on the CPU."""
    return _build(json.loads(data))


def _outline(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind in (list, tuple):
        return [kind.__name__, *map(_outline, value)]
    if kind is dict and all(type(key) is str for key in value):
        return ["dict", {key: _outline(item) for key, item in value.items()}]
    is_plain = kind is Tensor and is_dense(value) and not value.is_complex()
    if is_plain and not (value.dim() and value.numel()):
        return ["tensor", str(value.dtype), [*value.shape], 0 if value.dim() else value.item()]
    raise TypeError(f"an outline has no {kind.__name__}")


def _build(outline: Any) -> Any:
    if type(outline) in _ATOMS:
        return outline
    kind, *content = outline
    if kind == "tensor":
        dtype, shape, value = content
        return torch.full(shape, value, dtype=_DTYPES[dtype], device="cpu")
    if kind == "dict":
        return {key: _build(item) for key, item in content[0].items()}
    return {"list": list, "tuple": tuple}[kind](map(_build, content))


def _describe(leaf: Any) -> tuple[str, bytes]:
    if not isinstance(leaf, Tensor):
        return repr(leaf) if type(leaf) in ATOM_TYPES else "", b""
    text = f"{leaf.dtype} {leaf.layout}"
    if not is_dense(leaf):
        return text, b""
    text += str(tuple(leaf.shape))
    try:
        on_host = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
    except ValueNeededError:  # a rehearsal of shapes has no values
        return text, b""
    size = on_host.numel() * on_host.element_size()
    return text, ctypes.string_at(on_host.data_ptr(), size) if size else b""
