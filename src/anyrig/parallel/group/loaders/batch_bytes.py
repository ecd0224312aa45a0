"""A batch as bytes for other ranks: a digest of its values, or a whole batch without samples."""

from __future__ import annotations

import ctypes
import io
import pickle
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ....errors import ValueNeededError
from ....transfer.tree import ATOM_TYPES
from ...batch.cut import is_dense
from ..leaves import leaves_of


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
    """Return a batch without samples as bytes; None if a tensor has elements along a dimension, or
    if another rank would have to trust this one to load an object of the batch.
    """
    if any(
        isinstance(leaf, Tensor) and leaf.dim() and leaf.numel() for _, leaf in leaves_of(batch)
    ):
        return None
    file = io.BytesIO()
    try:
        torch.save(batch, file)
        decode_empty(file.getvalue())
    except (pickle.PickleError, AttributeError, RuntimeError, TypeError):
        return None
    return file.getvalue()


def decode_empty(data: bytes) -> Any:
    """Return the batch, with its tensors on the CPU."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


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
