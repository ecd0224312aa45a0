"""Nested tensors, strided or jagged, divided and joined by their parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ...transfer.beside import copy_in_order


def cut_nested(
    nested: Tensor, counts: Sequence[int], devices: Sequence[torch.device]
) -> list[Tensor]:
    """Return ``counts[i]`` parts of `nested` on ``devices[i]``, for each i, in order."""
    parts = nested.unbind()
    spans = pairwise(accumulate(counts, initial=0))
    cut = [
        _nest(parts[start:stop], nested.layout) if stop > start else _make_empty(nested)
        for start, stop in spans
    ]
    return list(map(copy_in_order, cut, devices))


def join_nested(nesteds: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return a nested tensor on `device` with the parts of all nested tensors, in order."""
    parts = [copy_in_order(part, device) for nested in nesteds for part in nested.unbind()]
    return _nest(parts, nesteds[0].layout) if parts else nesteds[0].to(device)


def _nest(parts: Sequence[Tensor], layout: torch.layout) -> Tensor:
    return torch.nested.as_nested_tensor(list(parts), layout=layout)


def _make_empty(like: Tensor) -> Tensor:
    if like.layout is not torch.jagged:
        return torch.nested.as_nested_tensor([], dtype=like.dtype, device=like.device)
    offsets: Tensor = like.offsets()  # type: ignore[attr-defined]  # jagged tensors only
    return torch.nested.nested_tensor_from_jagged(like.values()[:0], offsets[:1])
