"""All blocks of a device while memory was recorded, and how many bytes there were when."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .block import Block, Origin
from .event import Event
from .kinds import Kind
from .operator_log import OperatorLog, Role
from .segments import Segments


@dataclass(frozen=True)
class Refusal:
    """A request for which there was no memory.

    Attributes:
        position: of the event.
        requested_bytes: rounded up to whole blocks.
        free_bytes: of the device, outside the caching allocator.
    """

    position: int
    requested_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Timeline:
    """The blocks of one device from the beginning of a recording to its end.

    Lists go by position: the number of an event, in order. Position -1 is before the first.

    Attributes:
        allocated_bytes: after each event.
        reserved_bytes: after each event; what the caching allocator has of the device.
        seconds: of each event, since the epoch; None where unknown.
        operators: the number of the last operator that had run at each event.
        origins: of the operators, by number.
        refusals: requests for which there was no memory, in order.
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
        """Return the position just before the first event of an operator or of a later one."""
        return bisect_left(self.operators, operator) - 1

    def origin_at(self, position: int) -> Origin | None:
        """Return what the program was doing at a position; None if unknown."""
        return self.origins.get(self.operators[position]) if position >= 0 else None

    def last_refusal_seconds(self) -> float:
        """Return when the last request was refused, in seconds since the epoch."""
        return self.seconds[self.refusals[-1].position] or 0.0

    def find_peak(self, first: int = -1, last: int | None = None) -> int:
        """Return the position, from `first` to `last`, at which most bytes were allocated."""
        last = self.end if last is None else last
        return max(range(first, last + 1), key=self.allocated_at)

    def allocated_at(self, position: int) -> int:
        """Return the allocated bytes after the event at a position."""
        return self.start_allocated_bytes if position < 0 else self.allocated_bytes[position]

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
    """Return the timeline of a device, its blocks' tensors found by the log's roles.

    Args:
        device: with its index.
        before: the device's segments when the recording began, as in
            `torch.cuda.memory_snapshot`; none for the CPU.
        events: of the device, in order.
        log: what ran meanwhile.
        known: blocks of an earlier timeline that were still allocated at its end, by address.
    """
    building = _Building(before, caching=device.type != "cpu")
    for block in building.blocks:
        same = known.get(block.address)
        if same is not None:
            block.adopt(same)
    for event in events:
        building.add(event)
    blocks = _Blocks(building.blocks)
    for role in log.roles:
        if role.device == device:
            owner = blocks.find(role.address, role.operator)
            if owner is not None:
                _assign(role, owner)
    for block in building.blocks:
        if block.operator is not None:
            block.origin = log.origins.get(block.operator)
    return Timeline(
        device,
        tuple(building.blocks),
        building.start_allocated,
        building.start_reserved,
        building.allocated,
        building.reserved,
        [event.seconds for event in events],
        building.operators,
        dict(log.origins),
        building.refusals,
    )


def _assign(role: Role, block: Block) -> None:
    block.of_tensor = True
    if role.kind is None:
        block.name = block.name or role.name
    elif role.kind is not Kind.BATCH or block.kind is None:
        block.kind, block.name, block.module = role.kind, role.name, role.module


@dataclass
class _Building:
    """The state of a device's memory while events are read."""

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
        """Take one event into account."""
        position = len(self.allocated)
        allocated = self.allocated[-1] if self.allocated else self.start_allocated
        reserved = self.reserved[-1] if self.reserved else self.start_reserved
        operator = max(self.operators[-1] if self.operators else 0, event.operator or 0)
        if event.action == "alloc":
            size = event.bytes
            if self.caching:
                size = self._segments.allocate(event.address, event.bytes)
            # Frees carry the label of the operator before: only an allocation has its own.
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
            self.refusals.append(Refusal(position, event.bytes, event.address))
        self.allocated.append(allocated)
        self.reserved.append(reserved)
        self.operators.append(operator)

    def _begin(self, block: Block) -> None:
        self.blocks.append(block)
        self._alive[block.address] = block


class _Blocks:
    """Blocks by the address and the operator at which they were alive."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._of_address: dict[int, list[Block]] = defaultdict(list)
        for block in blocks:
            self._of_address[block.data_address or block.address].append(block)
        self._operators = {
            address: [block.operator or 0 for block in there]
            for address, there in self._of_address.items()
        }

    def find(self, address: int, operator: int) -> Block | None:
        """Return the last block at an address that an operator up to this one asked for."""
        there = self._of_address.get(address)
        if there is None:
            return None
        place = bisect_right(self._operators[address], operator)
        return there[place - 1] if place else None
