"""How many bytes an allocation takes of the caching allocator's segments.

The allocator's history has the bytes that were requested. What it counts is the block: rounded up,
and with a rest that is too small to be split off. Where a block begins is known, so its size
follows from the segments, by the rules of c10/cuda/CUDACachingAllocator.cpp (`should_split`).
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
    splits_small: bool  # of the small pool, or of an expandable segment


class Segments:
    """The segments of one device: each is parts side by side, free or not."""

    def __init__(self, snapshot: Iterable[Mapping[str, Any]]) -> None:
        """`snapshot`: the device's segments as `torch.cuda.memory_snapshot` has them."""
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
        """Add a segment that is free as a whole."""
        self._add(_Part(address, address, size, True, size <= _LARGEST_SMALL_SEGMENT))

    def remove_segment(self, address: int) -> None:
        """Remove a segment, which is free as a whole."""
        if address in self._parts:
            self._remove(self._parts[address])

    def allocate(self, address: int, requested: int) -> int:
        """Return the bytes of the block that an allocation at `address` gets."""
        size = -(-max(requested, 1) // _ROUNDING_BYTES) * _ROUNDING_BYTES
        part = self._parts.get(address)
        if part is None or not part.free or part.bytes < size:
            return size  # settings that round otherwise; the snapshot at the end has the truth
        rest = part.bytes - size
        if rest >= _ROUNDING_BYTES if part.splits_small else rest > _LARGEST_REST_NOT_SPLIT:
            part.bytes = size
            self._add(_Part(part.segment, address + size, rest, True, part.splits_small))
        part.free = False
        return part.bytes

    def free(self, address: int) -> None:
        """Free the block at `address`, and join it with free neighbours of its segment."""
        part = self._parts.get(address)
        if part is None:
            return
        part.free = True
        following = self._parts.get(part.address + part.bytes)
        if following is not None and self._join(part, following):
            self._remove(following)
        place = bisect_right(self._starts, address) - 1
        before = self._parts[self._starts[place - 1]] if place else None
        if before is not None and self._join(before, part):
            self._remove(part)

    @staticmethod
    def _join(one: _Part, other: _Part) -> bool:
        joined = one.free and other.free and one.segment == other.segment
        if joined:
            one.bytes += other.bytes
        return joined

    def _add(self, part: _Part) -> None:
        self._parts[part.address] = part
        insort(self._starts, part.address)

    def _remove(self, part: _Part) -> None:
        del self._parts[part.address]
        del self._starts[bisect_right(self._starts, part.address) - 1]
