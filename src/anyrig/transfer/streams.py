"""The streams on which copies run beside the computation."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch


@cache
def copy_stream(
    device: torch.device, direction: Literal["to device", "to host"]
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
