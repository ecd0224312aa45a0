"""What the message of CUDA's caching allocator says about a request that it refused."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..units import parse_bytes

# The format of its sizes is that of c10::CachingAllocator::format_size.
# tests/memory/test_untracked.py fails if the message changes.
_MESSAGE = re.compile(
    r"Tried to allocate (?P<requested>[\d.]+ \w+)\. GPU (?P<device>\d+) has a total capacity of "
    r".* of which (?P<unreserved>[\d.]+ \w+) is free\..* (?P<allocated>[\d.]+ \w+) is allocated by "
    r"PyTorch,.* and (?P<cached>[\d.]+ \w+) is reserved by PyTorch but unallocated"
)


@dataclass(frozen=True)
class RefusalMessage:
    """The figures of a message, in bytes, which it rounds to two decimal places of their units.

    Attributes:
        device: the CUDA index of the device.
        requested_bytes: the size of the request.
        allocated_bytes: what was allocated.
        cached_bytes: what PyTorch's caching allocator held in free blocks.
        unreserved_bytes: what was free outside the allocator.
    """

    device: int
    requested_bytes: int
    allocated_bytes: int
    cached_bytes: int
    unreserved_bytes: int


def read_refusal(text: str) -> RefusalMessage | None:
    """Return what the message of a `torch.OutOfMemoryError` says; None if it is not CUDA's."""
    found = _MESSAGE.search(text)
    if found is None:
        return None
    names = ("requested", "allocated", "cached", "unreserved")
    return RefusalMessage(int(found["device"]), *(_read(found[name]) for name in names))


def _read(size: str) -> int:
    return parse_bytes(size.removesuffix("ytes"))  # c10 writes "512 bytes"
