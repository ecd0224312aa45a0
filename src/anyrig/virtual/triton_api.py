"""Triton, where it is installed: its kernels would be compiled for a card.

Builds of PyTorch for CUDA bring it along. PyTorch takes it for usable where it can be imported and
a card is there, and asks it for the driver, even to compile for the CPU. A program's own kernels
run in Triton's interpreter instead, on the CPU.
"""

from __future__ import annotations

import functools
import os

import torch.utils._triton


def patch() -> None:
    """Keep PyTorch from asking Triton for a driver, and Triton from compiling kernels."""
    # Private, and the one function that all of PyTorch asks.
    torch.utils._triton.has_triton = _has_triton
    # Triton looks when a kernel is defined, here and in the processes that this one starts.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@functools.cache  # as PyTorch's own, whose callers clear it
def _has_triton(**_options: bool) -> bool:  # which 2.15 has
    return False
