"""Compute the sizes of the blocks that the caching allocator hands out.

The allocator's history contains the requested bytes, but its statistics count blocks: rounded up,
plus any remainder that is too small to split off. Given the block's address, the size is computed
from the segments, by the rules of c10/cuda/CUDACachingAllocator.cpp (`should_split`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_ROUNDING_BYTES = 512
_LARGEST_SMALL_SEGMENT = 2 * 2**20
_LARGEST_REST_NOT_SPLIT = 2**20


@dataclass(eq=False)
class _Part:
    segment: int  # the address of the segment
    address: int
    bytes: int
    free: bool
    splits_small: bool  # whether in the small pool or an expandable segment


class Segments:
    """The segments of one device. Each consists of adjacent parts, free or allocated."""

    def __init__(self, snapshot: Iterable[Mapping[str, Any]]) -> None:
        """Read the device's segments from `torch.cuda.memory_snapshot`."""
        self._parts: dict[int, _Part] = {}
        self._starts: list[int] = []
        for segment in snapshot:
            small = segment["segment_type"] == "small" or segment.get("is_expandable", False)
            for block in segment["blocks"]:
                self._add(
                    _Part(
                        segment["address"],
                        block["address"],
                        block["size"],
                        block["state"] == "inactive",
                        small,
                    )
                )

    def add_segment(self, address: int, size: int) -> None:
        """Add a segment as one free part."""
        self._add(_Part(address, address, size, True, size <= _LARGEST_SMALL_SEGMENT))

    def remove_segment(self, address: int) -> None:
        """Remove a segment, which must be one free part."""
        if address in self._parts:
            self._remove(self._parts[address])

    def allocate(self, address: int, requested: int) -> int:
        """Allocate `requested` bytes at `address`, and return the bytes of the block."""
        size = -(-max(requested, 1) // _ROUNDING_BYTES) * _ROUNDING_BYTES
        part = self._parts.get(address)
        if part is None or not part.free or part.bytes < size:
            return size  # the allocator's settings round differently
        rest = part.bytes - size
        if rest >= _ROUNDING_BYTES if part.splits_small else rest > _LARGEST_REST_NOT_SPLIT:
            part.bytes = size
            self._add(_Part(part.segment, address + size, rest, True, part.splits_small))
        part.free = False
        return part.bytes

    def free(self, address: int) -> None:
        """Free the block at `address`, and merge it with free neighbours in its segment."""
        part = self._parts.get(address)
        if part is None:
            return
        part.free = True
        following = self._parts.get(part.address + part.bytes)
        if following is not None and self._merge(part, following):
            self._remove(following)
        index = bisect_right(self._starts, address) - 1
        before = self._parts[self._starts[index - 1]] if index else None
        if before is not None and self._merge(before, part):
            self._remove(part)

    def largest_free(self) -> int:
        """Return the size of the largest free block in bytes, or 0 if no block is free."""
        return max((part.bytes for part in self._parts.values() if part.free), default=0)

    @staticmethod
    def _merge(first: _Part, second: _Part) -> bool:
        merged = first.free and second.free and first.segment == second.segment
        if merged:
            first.bytes += second.bytes
        return merged

    def _add(self, part: _Part) -> None:
        self._parts[part.address] = part
        insort(self._starts, part.address)

    def _remove(self, part: _Part) -> None:
        del self._parts[part.address]
        del self._starts[bisect_right(self._starts, part.address) - 1]
