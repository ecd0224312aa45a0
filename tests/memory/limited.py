"""A limit of the memory of the first GPU, so that tests run out of little memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

MIB = 2**20


@contextmanager
def limited_to(count: int) -> Iterator[None]:
    """Let this process reserve `count` more bytes on the first GPU."""
    gc.collect()  # exceptions of earlier tests, which hold tensors
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info(0)[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + count) / total, 0)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)
        gc.collect()
        torch.cuda.empty_cache()
