"""Sums of the bytes of a tensor, which change when its values do."""

from __future__ import annotations

import torch
from torch import Tensor

Sums = tuple[int, ...]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Sums over every element, every second and every third: a permutation keeps the first only.
_STRIDES = (1, 2, 3)


def can_sum(tensor: Tensor) -> bool:
    """Return whether a tensor is dense, has data, and is not a subclass written in Python."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and tensor.numel() > 0
    )


def sum_bytes(tensor: Tensor) -> Sums:
    """Return sums over the bits of a tensor. Waits for its device, and allocates memory there."""
    with torch.no_grad():
        values = torch.detach(tensor)  # `Tensor.detach` may be watched
        if values.is_nested:  # has no shape; its parts share one buffer
            values = values.contiguous().values()
        if values.is_complex():
            values = torch.view_as_real(values.resolve_conj())
        flat = values.resolve_neg().contiguous().flatten()
        bits = flat.view(_INTEGERS[flat.element_size()])
        sums = [bits[::stride].sum(dtype=torch.int64) for stride in _STRIDES]
        return tuple(torch.stack(sums).tolist())
