"""A slow, simple reference implementation of the caching allocator, with default options only.

A segment is a list of parts in address order. Every method searches all parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20
FIRST_ADDRESS = 1 << 52


@dataclass(eq=False)
class Part:
    size: int
    requested: int = 0
    allocated: bool = False
    waits_for: dict[int, int] = field(default_factory=dict)  # by stream: the work to wait for
    used_on: set[int] = field(default_factory=set)

    @property
    def is_free(self) -> bool:
        return not self.allocated and not self.waits_for


@dataclass(eq=False)
class Segment:
    address: int
    stream: int
    small: bool
    parts: list[Part]

    def address_of(self, part: Part) -> int:
        return self.address + sum(p.size for p in self.parts[: self.parts.index(part)])


class OutOfMemoryError(RuntimeError):
    pass


class ReferenceAllocator:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.segments: list[Segment] = []
        self.next_address = FIRST_ADDRESS
        self.queued: dict[int, int] = {}  # by stream: the work queued so far
        self.finished: dict[int, int] = {}

    def queue(self, stream: int) -> None:
        self.queued[stream] = self.queued.get(stream, 0) + 1

    def finish(self, stream: int) -> None:
        self.finished[stream] = self.queued.get(stream, 0)

    def reserved(self) -> int:
        return sum(part.size for segment in self.segments for part in segment.parts)

    def allocated(self) -> int:
        return sum(p.size for s in self.segments for p in s.parts if p.allocated)

    def active(self) -> int:
        return sum(p.size for s in self.segments for p in s.parts if not p.is_free)

    def requested(self) -> int:
        return sum(p.requested for s in self.segments for p in s.parts if not p.is_free)

    def inactive_split(self) -> tuple[int, int]:
        sizes = [p.size for s in self.segments for p in s.parts if p.is_free and len(s.parts) > 1]
        return len(sizes), sum(sizes)

    def allocate(self, request: int, stream: int) -> tuple[Segment, Part]:
        self._process_events()
        size = max(512, -(-request // 512) * 512)
        small = size <= MIB
        fitting = [
            (part.size, segment.address_of(part), segment, part)
            for segment in self.segments
            if segment.small == small and segment.stream == stream
            for part in segment.parts
            if part.is_free and part.size >= size
        ]
        if fitting:
            _, _, segment, part = min(fitting, key=lambda row: row[:2])
        else:
            segment = self._new_segment(size, stream, small)
            part = segment.parts[0]
        rest = part.size - size
        if rest >= 512 if small else rest > MIB:
            part.size = size
            segment.parts.insert(segment.parts.index(part) + 1, Part(rest))
        part.allocated, part.requested = True, request
        return segment, part

    def _new_segment(self, size: int, stream: int, small: bool) -> Segment:
        if small:
            total = 2 * MIB
        elif size < 10 * MIB:
            total = 20 * MIB
        else:
            total = -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved() + total > self.capacity:
            self.empty_cache()
        if self.reserved() + total > self.capacity:
            raise OutOfMemoryError
        segment = Segment(self.next_address, stream, small, [Part(total)])
        self.next_address += total
        self.segments.append(segment)
        return segment

    def free(self, segment: Segment, part: Part) -> None:
        part.allocated = False
        part.waits_for = {stream: self.queued.get(stream, 0) for stream in part.used_on}
        part.used_on = set()
        self._merge(segment)

    def _process_events(self) -> None:
        """Free finished parts. CUDA queries its events only when memory is requested."""
        for segment in self.segments:
            for part in segment.parts:
                part.waits_for = {
                    stream: mark
                    for stream, mark in part.waits_for.items()
                    if self.finished.get(stream, 0) < mark
                }
            self._merge(segment)

    def empty_cache(self) -> None:
        for segment in self.segments:
            for part in segment.parts:
                for stream, mark in part.waits_for.items():
                    self.finished[stream] = max(self.finished.get(stream, 0), mark)
        self._process_events()
        self.segments = [s for s in self.segments if len(s.parts) > 1 or not s.parts[0].is_free]

    @staticmethod
    def _merge(segment: Segment) -> None:
        merged: list[Part] = []
        for part in segment.parts:
            if merged and merged[-1].is_free and part.is_free:
                merged[-1].size += part.size
            else:
                merged.append(part)
        segment.parts = merged
