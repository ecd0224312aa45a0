"""A batch as bytes for other ranks: a digest of its values, or a whole batch without samples."""

from __future__ import annotations

import ctypes
import json
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ....errors import SpreadError, ValueNeededError
from ....transfer.leaves import leaves_of
from ....transfer.tree import ATOM_TYPES
from ...batch.cut import is_dense
from ...pipeline.over_ranks.contents import forms_of, make_value, read_value


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
    """Return a batch without samples as JSON; None if the batch has a tensor with elements along a
    dimension, or an object that `read_value` refuses.
    """
    try:
        contents = read_value(batch, "the batch")
        values = [each.item() if not each.dim() else 0 for each in contents.tensors]
        data = json.dumps([contents.text, values]).encode()
    except (SpreadError, TypeError):  # JSON has no complex numbers
        return None
    return None if any(each.dim() and each.numel() for each in contents.tensors) else data


def decode_empty(data: bytes) -> Any:
    """Return the batch, with its tensors on the CPU."""
    text, values = json.loads(data)
    tensors = [
        torch.full(form.shape, value, dtype=form.dtype, device="cpu")
        for form, value in zip(forms_of(text), values, strict=True)
    ]
    return make_value(text, tensors)


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
