"""The samples of a batch: hashes by which two runs are known to compute the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

# The label that losses ignore by default: torch.nn.functional.cross_entropy's `ignore_index`.
_IGNORED_LABEL = -100


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested containers, in their order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        for one in values.values():
            yield from tensors_in(one)
    elif isinstance(values, tuple | list):
        for one in values:
            yield from tensors_in(one)


def hash_samples(values: Any) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Return a hash of each sample of the first tensor with dimensions, and a sample's shape.

    None if there is no such tensor, or a model has computed it, as what a criterion gets.
    """
    from torch.distributed.tensor import DTensor

    for tensor in tensors_in(values):
        if tensor.dim() == 0 or isinstance(tensor, DTensor):
            continue
        if tensor.grad_fn is not None:
            return None
        host = tensor.detach().cpu()
        if host.is_floating_point():
            host = host.double()
        rows = (
            host.contiguous().view(torch.uint8).reshape(host.shape[0], -1) if host.numel() else host
        )
        hashes = tuple(_digest(row) for row in rows)
        return hashes, tuple(host.shape[1:])
    return None


def digest_of(values: Any) -> str:
    """Return a hash of all tensors of nested containers."""
    whole = hashlib.blake2b(digest_size=16)
    for tensor in tensors_in(values):
        whole.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().cpu().reshape(-1)  # a tensor without dimensions has no other view
        whole.update(_digest(flat.view(torch.uint8)).encode())
    return whole.hexdigest()


def count_labels(values: Any) -> int | None:
    """Return how many labels of a batch count towards its loss; None if that cannot be seen.

    Labels are the integers of the last tensor, if some of them are `ignore_index`; or the entries
    of a mask that are True.
    """
    found = None
    for tensor in tensors_in(values):
        if tensor.dtype == torch.bool:
            found = int(tensor.sum())
        elif tensor.dtype == torch.int64 and bool((tensor == _IGNORED_LABEL).any()):
            found = int((tensor != _IGNORED_LABEL).sum())
    return found


def _digest(tensor: Tensor) -> str:
    return hashlib.blake2b(tensor.contiguous().numpy().tobytes(), digest_size=8).hexdigest()
