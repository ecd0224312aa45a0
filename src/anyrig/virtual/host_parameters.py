"""Large parameters that the host draws at random: in shape-only mode, nobody reads their values.

A model is mostly built on the host, and copied to a GPU. `torch.nn.init` would write all of it
before, which a rehearsal can save: 1.3 billion parameters take 5 GiB of the host's memory, and
writing to new memory takes longer than drawing the numbers. The numbers are drawn into one small
tensor again and again, so that the host's generator ends in the same state as without a rehearsal.
The parameters keep what `torch.empty` gave them: zeros that take no memory, because the C library
gets blocks of this size from the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# The largest size that glibc may serve from memory that was freed before (M_MMAP_THRESHOLD's
# DEFAULT_MMAP_THRESHOLD_MAX on 64 bits; see mallopt(3)).
LARGE_BYTES = 32 * 2**20
# Of the small tensor: a multiple of 16, as `normal_` draws in blocks of 16.
_DRAWN_AT_ONCE = 2**16


def patch() -> None:
    """Draw the numbers of large parameters on the host without writing them."""
    for name in ("normal_", "uniform_"):
        setattr(nn.Parameter, name, _drawn_only(name))


def _drawn_only(name: str) -> Any:
    fill = getattr(torch.Tensor, name)

    def draw(parameter: nn.Parameter, *arguments: Any, **options: Any) -> Any:
        is_refused = parameter.requires_grad and torch.is_grad_enabled()
        if is_refused or not _is_large(parameter):
            return fill(parameter, *arguments, **options)
        numbers = torch.empty(_DRAWN_AT_ONCE, dtype=parameter.dtype, device="cpu")
        left = parameter.numel()
        while left >= 2 * _DRAWN_AT_ONCE:
            fill(numbers, *arguments, **options)
            left -= _DRAWN_AT_ONCE
        fill(torch.empty(left, dtype=parameter.dtype, device="cpu"), *arguments, **options)
        return parameter

    draw.__name__ = name
    return draw


def _is_large(parameter: nn.Parameter) -> bool:
    is_plain = type(parameter) is nn.Parameter and parameter.device.type == "cpu"
    return is_plain and parameter.is_contiguous() and parameter.nbytes > LARGE_BYTES
