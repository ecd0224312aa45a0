"""The streams on which copies run beside the computation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch


@cache
def copy_stream(
    device: torch.device, direction: Literal["to device", "to host", "to peer"]
) -> torch.Stream | None:
    """Return the stream for copies in one direction, or None if the device has no second stream.

    There is one stream for each device and direction, as there is one copy engine for each: copies
    in one direction would share the link anyway, and the caching allocator keeps a pool of memory
    for each stream, so that a stream for each epoch would keep the memory of each.
    """
    try:
        stream = torch.Stream(device)
    except RuntimeError:
        return None
    # A backend with one stream (mps, cpu) either refuses or hands out that one, whose id is 0.
    return stream if stream.stream_id != 0 else None


@contextmanager
def using(*streams: torch.Stream) -> Iterator[None]:
    """Make streams current, each on its device, and the last one's device current.

    A `torch.Stream` is a context manager too, but keeps what it replaced in itself, so that two
    threads cannot use one at a time.
    """
    index = torch.accelerator.current_device_index()
    before = [torch.accelerator.current_stream(stream.device) for stream in streams]
    try:
        for stream in streams:
            torch.accelerator.set_stream(stream)
        yield
    finally:
        for stream in before:
            torch.accelerator.set_stream(stream)
        torch.accelerator.set_device_index(index)
