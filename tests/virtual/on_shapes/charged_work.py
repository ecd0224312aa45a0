"""The FLOPs and bytes that the clock charges for work on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from anyrig.virtual import clock


def close(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def leaf(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*sizes, device="cuda", dtype=dtype, requires_grad=True)


def charged(work: Callable[[], object]) -> tuple[float, float]:
    """Return the FLOPs and bytes of `work` on cuda:0."""
    before = clock().devices[0]
    work()
    after = clock().devices[0]
    return after.flops - before.flops, after.memory_bytes - before.memory_bytes


def ones(*sizes: int) -> Tensor:
    return torch.empty(*sizes, device="cuda")


def rows() -> Tensor:
    return torch.empty(8, dtype=torch.long, device="cuda")


def numbers(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.long, device="cuda")
