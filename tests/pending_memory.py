"""Memory that the program has freed, and that the allocator keeps for streams that still use it."""

from __future__ import annotations

import torch


def pending_blocks(device: torch.device) -> list[int]:
    """Return the bytes that were asked for each such block of a device, the least first."""
    torch.empty(1, device=device)  # the allocator looks at streams when memory is asked for
    return sorted(
        block["requested_size"]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == device.index
        for block in segment["blocks"]
        if block["state"] == "active_pending_free"
    )


def hold_up(stream: torch.Stream | None) -> None:
    """Have a stream sleep, so that nothing that is queued behind is done for a while."""
    assert stream is not None
    with torch.cuda.device(stream.device), stream:
        torch.cuda._sleep(10**9)


def let_all_end(*devices: torch.device) -> None:
    """Wait for all streams; nothing is pending then."""
    for device in devices:
        with torch.cuda.device(device):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        assert pending_blocks(device) == []
