"""Nested tensors, strided or jagged, split and joined by their parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor


def cut_nested(
    nested: Tensor, counts: Sequence[int], devices: Sequence[torch.device]
) -> list[Tensor]:
    """Return ``counts[i]`` parts of `nested` on ``devices[i]``, for each i, in order."""
    parts = nested.unbind()
    return [
        (_nest(parts[start:stop], nested.layout) if stop > start else _without_parts(nested)).to(
            device, non_blocking=True
        )
        for (start, stop), device in zip(
            pairwise(accumulate(counts, initial=0)), devices, strict=True
        )
    ]


def join_nested(nesteds: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return a nested tensor on `device` of the parts of all, in order."""
    parts = [
        part.to(device, non_blocking=device.type != "cpu")
        for nested in nesteds
        for part in nested.unbind()
    ]
    return _nest(parts, nesteds[0].layout) if parts else nesteds[0].to(device)


def _nest(parts: Sequence[Tensor], layout: torch.layout) -> Tensor:
    return torch.nested.as_nested_tensor(list(parts), layout=layout)


def _without_parts(nested: Tensor) -> Tensor:
    if nested.layout is not torch.jagged:
        return torch.nested.as_nested_tensor([], dtype=nested.dtype, device=nested.device)
    offsets: Tensor = nested.offsets()  # type: ignore[attr-defined]  # of jagged ones only
    return torch.nested.nested_tensor_from_jagged(nested.values()[:0], offsets[:1])
