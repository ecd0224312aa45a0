"""A digest of a batch's values, by which ranks compare batches without sending them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
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
        for part in _parts_of(leaf):
            digest.update(place.encode() + b"\0" + part + b"\0")
    return digest.hexdigest().encode()


def _parts_of(leaf: Any) -> Iterator[bytes]:
    yield type(leaf).__qualname__.encode()
    if isinstance(leaf, PackedSequence):
        yield from _parts_of(leaf.data)
        yield from _parts_of(leaf.batch_sizes)
    elif isinstance(leaf, Tensor):
        yield f"{leaf.dtype} {leaf.layout}".encode()
        if is_dense(leaf):
            yield repr(tuple(leaf.shape)).encode()
            yield _bytes_of(leaf)
    elif type(leaf) in _WITH_TELLING_TEXT:
        yield repr(leaf).encode()


def _bytes_of(tensor: Tensor) -> bytes:
    try:
        on_host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    except ValueNeededError:  # a rehearsal without values has none to tell apart
        return b""
    size = on_host.numel() * on_host.element_size()
    return ctypes.string_at(on_host.data_ptr(), size) if size else b""
