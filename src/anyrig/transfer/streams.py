"""Streams for copies that run concurrently with the computation."""

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

    There is one stream for each device and direction. Copies in one direction share one copy engine
    and one link anyway. The caching allocator keeps a memory pool for each stream, so creating a
    stream in each epoch would leave a pool behind for each.
    """
    try:
        stream = torch.Stream(device)
    except RuntimeError:
        return None
    # A backend with one stream (mps, cpu) raises an error or returns that stream, whose id is 0.
    return stream if stream.stream_id != 0 else None


@contextmanager
def using(*streams: torch.Stream) -> Iterator[None]:
    """Make each stream the current one of its device, and the last stream's device current.

    A `torch.Stream` is a context manager too, but stores the previous stream in itself, so two
    threads cannot use one stream at the same time.
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
