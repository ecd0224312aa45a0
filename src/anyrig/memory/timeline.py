"""The blocks of a device during a recording, and its allocated and reserved bytes over time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .block import Block, Origin
from .event import Event
from .free_memory import FreeMemory
from .kinds import Kind
from .operator_log import OperatorLog, Role
from .segments import Segments


@dataclass(frozen=True)
class Refusal:
    """A request that failed because memory was full.

    Attributes:
        position: the position of the event.
        requested_bytes: the size of the request, rounded up to whole blocks.
        free_bytes: the device's free memory, outside the caching allocator.
        largest_cached_bytes: the largest free block of the caching allocator; None if unknown.
    """

    position: int
    requested_bytes: int
    free_bytes: int
    largest_cached_bytes: int | None = None


@dataclass(frozen=True)
class Timeline:
    """The blocks of one device from the beginning of a recording to its end.

    A position is the index of an event. Position -1 is before the first event.

    Attributes:
        allocated_bytes: the allocated bytes after each event.
        reserved_bytes: the bytes that the caching allocator has reserved after each event.
        seconds: the time of each event since the epoch; None where unknown.
        operators: the number of the last operator that had begun at each event.
        origins: the origins of operators, by number.
        refusals: the requests that failed because memory was full, in order.
    """

    device: torch.device
    blocks: tuple[Block, ...]
    start_allocated_bytes: int
    start_reserved_bytes: int
    allocated_bytes: Sequence[int]
    reserved_bytes: Sequence[int]
    seconds: Sequence[float | None]
    operators: Sequence[int]
    origins: Mapping[int, Origin]
    refusals: Sequence[Refusal]

    @property
    def end(self) -> int:
        """The position of the last event."""
        return len(self.allocated_bytes) - 1

    def position_of(self, operator: int) -> int:
        """Return the position just before the first event of `operator` or of a later operator."""
        return bisect_left(self.operators, operator) - 1

    def origin_at(self, position: int) -> Origin | None:
        """Return what the program was doing at a position; None if unknown."""
        return self.origins.get(self.operators[position]) if position >= 0 else None

    def last_refusal_seconds(self) -> float:
        """Return the time of the last refusal, in seconds since the epoch."""
        return self.seconds[self.refusals[-1].position] or 0.0

    def find_peak(self, first: int = -1, last: int | None = None) -> int:
        """Return the position from `first` to `last` (inclusive) with the most allocated bytes."""
        last = self.end if last is None else last
        return max(range(first, last + 1), key=self.allocated_at)

    def allocated_at(self, position: int) -> int:
        """Return the allocated bytes after the event at a position."""
        return self.start_allocated_bytes if position < 0 else self.allocated_bytes[position]

    def free_at(self, refusal: Refusal) -> FreeMemory:
        """Return what was free when a request was refused."""
        reserved = self.reserved_at(refusal.position)
        return FreeMemory(
            refusal.requested_bytes,
            reserved - self.allocated_at(refusal.position),
            refusal.largest_cached_bytes,
            refusal.free_bytes,
            reserved,
        )

    def reserved_at(self, position: int) -> int:
        """Return the reserved bytes after the event at a position."""
        return self.start_reserved_bytes if position < 0 else self.reserved_bytes[position]


def read_timeline(
    device: torch.device,
    before: Sequence[Mapping[str, Any]],
    events: Sequence[Event],
    log: OperatorLog,
    known: Mapping[int, Block],
) -> Timeline:
    """Return the timeline of a device. The log's roles give its blocks their kinds and names.

    Args:
        device: the device, with its index.
        before: the device's segments when the recording began, in the format of
            `torch.cuda.memory_snapshot`.
        events: the device's events, in order.
        log: the operators and roles of the recording.
        known: the blocks that were still allocated at the end of an earlier timeline, by address.
    """
    builder = _TimelineBuilder(before, caching=device.type != "cpu")
    for block in builder.blocks:
        earlier = known.get(block.address)
        if earlier is not None:
            block.adopt(earlier)
    for event in events:
        builder.add(event)
    blocks = _BlockIndex(builder.blocks)
    for role in log.roles:
        if role.device == device:
            owner = blocks.find(role.address, role.operator)
            if owner is not None:
                _assign(role, owner)
    for block in builder.blocks:
        if block.operator is not None:
            block.origin = log.origins.get(block.operator)
    return Timeline(
        device,
        tuple(builder.blocks),
        builder.start_allocated,
        builder.start_reserved,
        builder.allocated,
        builder.reserved,
        [event.seconds for event in events],
        builder.operators,
        dict(log.origins),
        builder.refusals,
    )


def _assign(role: Role, block: Block) -> None:
    block.has_tensor = True
    if role.kind is None:
        block.name = block.name or role.name
    elif role.kind is not Kind.BATCH or block.kind is None:
        block.kind, block.name, block.module = role.kind, role.name, role.module


@dataclass
class _TimelineBuilder:
    """The state of a device's memory while events are added in order."""

    before: Sequence[Mapping[str, Any]]
    caching: bool
    blocks: list[Block] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    operators: list[int] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._segments = Segments(self.before)
        self._alive: dict[int, Block] = {}
        for segment in self.before:
            for part in segment["blocks"]:
                if part["state"] == "active_allocated":
                    block = Block(part["address"], part["size"], None, -1)
                    block.data_address = part.get("data_ptr")
                    self._begin(block)
        self.start_allocated = sum(block.bytes for block in self.blocks)
        self.start_reserved = sum(segment["total_size"] for segment in self.before)

    def add(self, event: Event) -> None:
        """Update the state with one event."""
        position = len(self.allocated)
        allocated = self.allocated[-1] if self.allocated else self.start_allocated
        reserved = self.reserved[-1] if self.reserved else self.start_reserved
        operator = max(self.operators[-1] if self.operators else 0, event.operator or 0)
        if event.action == "alloc":
            size = event.bytes
            if self.caching:
                size = self._segments.allocate(event.address, event.bytes)
            # Only allocations have the label of their operator; other events keep an older label.
            self._begin(Block(event.address, size, operator, position))
            allocated += size
        elif event.action == "free":
            block = self._alive.pop(event.address, None)
            if block is not None:
                block.died = position
                allocated -= block.bytes
        elif event.action == "reuse":
            self._segments.free(event.address)
        elif event.action == "segment_alloc":
            self._segments.add_segment(event.address, event.bytes)
            reserved += event.bytes
        elif event.action == "segment_free":
            self._segments.remove_segment(event.address)
            reserved -= event.bytes
        elif event.action == "refuse":
            largest = self._segments.largest_free()
            self.refusals.append(Refusal(position, event.bytes, event.address, largest))
        self.allocated.append(allocated)
        self.reserved.append(reserved)
        self.operators.append(operator)

    def _begin(self, block: Block) -> None:
        self.blocks.append(block)
        self._alive[block.address] = block


class _BlockIndex:
    """An index of blocks by address and operator."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._of_address: dict[int, list[Block]] = defaultdict(list)
        for block in blocks:
            self._of_address[block.data_address or block.address].append(block)
        self._operators = {
            address: [block.operator or 0 for block in blocks]
            for address, blocks in self._of_address.items()
        }

    def find(self, address: int, operator: int) -> Block | None:
        """Return the last block at `address` that `operator` or an earlier operator allocated."""
        blocks = self._of_address.get(address)
        if blocks is None:
            return None
        count = bisect_right(self._operators[address], operator)
        return blocks[count - 1] if count else None
