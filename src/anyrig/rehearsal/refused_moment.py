"""Describe the memory of a device at the moment at which the program ran out of it."""

from __future__ import annotations

from ..memory.refusal_message import RefusalMessage, read_refusal
from ..units import format_bytes
from .facts import DeviceFacts, Facts

# The figures of PyTorch's message are rounded to two decimal places.
_ROUNDING = 0.006


def describe_refused_moment(facts: Facts, device: DeviceFacts) -> list[str]:
    """Return what the device held when it ran out of memory, to compare with its peak.

    Most memory may have been in use before, since the caching allocator releases its free blocks
    before it gives up. Returns nothing if the program ended otherwise, on another device, or if
    several ranks have a device of this index.
    """
    error = facts.error
    if error is None or error.kind != "OutOfMemoryError":
        return []
    refusal = read_refusal(error.text)
    if refusal is None or refusal.device != device.index:
        return []
    if len([each for each in facts.devices if each.index == device.index]) > 1:
        return []
    if _is_peak(refusal, device):
        return ["the peak is when it ran out of memory"]
    return [
        f"when it ran out of memory, after the peak: {format_bytes(refusal.allocated_bytes)} "
        f"allocated, cached {format_bytes(refusal.cached_bytes)}, "
        f"{format_bytes(refusal.unreserved_bytes)} left"
    ]


def _is_peak(refusal: RefusalMessage, device: DeviceFacts) -> bool:
    peak = device.peak
    pairs = (
        ((peak.tensor_bytes or 0) + (peak.workspace_bytes or 0), refusal.allocated_bytes),
        (peak.cached_bytes or 0, refusal.cached_bytes),
    )
    return all(abs(one - other) <= _ROUNDING * max(one, other) for one, other in pairs)
