"""A digest of a batch's values, by which ranks compare batches without sending them."""

from __future__ import annotations

import ctypes
from hashlib import blake2b
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ....errors import ValueNeededError
from ..leaves import is_dense, leaves_of

_WITH_TELLING_TEXT = (type(None), bool, int, float, complex, str, bytes)


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


def _describe(leaf: Any) -> tuple[str, bytes]:
    if not isinstance(leaf, Tensor):
        return repr(leaf) if type(leaf) in _WITH_TELLING_TEXT else "", b""
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
