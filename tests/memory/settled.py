"""Allocated memory, once the threads of PyTorch have let go of theirs."""

from __future__ import annotations

import time

import torch


def bytes_above(before: int, device: int | None = None) -> int:
    """Return the bytes allocated now, less those before.

    The thread of a collective or of a backward pass may hold its last tensors for a moment after
    the program has gone on.
    """
    deadline = time.monotonic() + 5
    while (above := torch.cuda.memory_allocated(device) - before) > 0:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return above
