"""Snapshots of PyTorch's caching allocator that were recorded on real GPUs, and their replay.

A snapshot has the segments and blocks at its end, and the trace of events that led there. The trace
may start late; running it backwards from the end gives the state at its start::

    state at the start  ──events──>  state at the end
           │                                │
           └────────── recorded ────────────┘  the model must create and release the same segments
"""

from __future__ import annotations

import bisect
import gzip
import json
import os
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from allocator_model import MIB, AllocatorModel, Block

SMALL_SEGMENT = 2 * MIB
# A free block of the large pool is larger than this, and a block of the small pool is not.
LARGEST_SMALL_BLOCK = MIB


def calibration_folder() -> Path | None:
    """Return the folder of public measurements, which is not part of this repository."""
    folder = os.environ.get("ANYRIG_CALIBRATION")
    return None if folder is None else Path(folder)


@dataclass(frozen=True)
class Event:
    action: str
    address: int
    size: int


@dataclass(frozen=True)
class State:
    """Segments (address to size) and live blocks (address to size)."""

    segments: dict[int, int]
    blocks: dict[int, int]


@dataclass
class Agreement:
    """What a replay found.

    Attributes:
        allocations: requests of the trace.
        segments: segments that the trace created or released.
        differences: one sentence for each request whose segments differ.
    """

    allocations: int = 0
    segments: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Snapshot:
    name: str
    end: State
    events: list[Event]

    @classmethod
    def read(cls, path: Path) -> Snapshot:
        content = json.loads(gzip.decompress(path.read_bytes()))
        segments = {s["address"]: s["total_size"] for s in content["segments"]}
        blocks = {
            address: size
            for segment in content["segments"]
            for address, size, _, state in segment["blocks"]
            if state != "inactive"
        }
        events = [Event(*event) for event in content["trace"]]
        return cls(path.name.removesuffix(".json.gz"), State(segments, blocks), events)

    def start(self) -> State:
        """Return the state before the first event."""
        segments, blocks = dict(self.end.segments), dict(self.end.blocks)
        for event in reversed(self.events):
            if event.action == "alloc":
                del blocks[event.address]
            elif event.action == "free_completed":
                blocks[event.address] = (event.size + 511) // 512 * 512
            elif event.action == "segment_alloc":
                del segments[event.address]
            elif event.action == "segment_free":
                segments[event.address] = event.size
        return State(segments, blocks)


def replay(snapshot: Snapshot, model: AllocatorModel) -> Agreement:
    """Give `model`, which must be new, the trace's requests and compare the segments."""
    agreement = Agreement()
    live = build(snapshot.start(), model)
    created: list[int] = []  # sizes of segments that the trace has created since the last request
    released: list[int] = []
    for event in snapshot.events:
        if event.action == "segment_free":
            released.append(event.size)
            continue
        if released:
            before = model.now("segment"), model.now("reserved_bytes")
            model.empty_cache()
            after = model.now("segment"), model.now("reserved_bytes")
            agreement.segments += len(released)
            if before != (after[0] + len(released), after[1] + sum(released)):
                agreement.differences.append(f"{len(released)} segments released: {before} {after}")
            released = []
        if event.action == "segment_alloc":
            created.append(event.size)
        elif event.action == "free_completed":
            model.free(live.pop(event.address))
        elif event.action == "alloc":
            reserved, count = model.now("reserved_bytes"), model.now("segment")
            live[event.address] = model.allocate(event.size)
            ours = [model.now("reserved_bytes") - reserved] * (model.now("segment") - count)
            agreement.allocations += 1
            agreement.segments += len(created)
            if ours != created:
                agreement.differences.append(
                    f"request {agreement.allocations} of {event.size} bytes created segments of "
                    f"{created} bytes on the GPU and of {ours} here"
                )
            created = []
    return agreement


def build(state: State, model: AllocatorModel) -> dict[int, Block]:
    """Create the segments of `state` in the order of their addresses; return the live blocks."""
    addresses = sorted(state.segments)
    inside: dict[int, list[int]] = {address: [] for address in addresses}
    for address in sorted(state.blocks):
        inside[addresses[bisect.bisect_right(addresses, address) - 1]].append(address)
    live, idle = {}, []
    for segment in addresses:
        size = state.segments[segment]
        largest = size
        if size == SMALL_SEGMENT:
            largest = LARGEST_SMALL_BLOCK
        else:
            model.free(model.allocate(size))  # the whole segment, to be divided from its start
        for begin, end, is_live in divide(segment, size, inside[segment], state.blocks):
            for piece in range(begin, end, largest):
                block = model.allocate(min(largest, end - piece))
                if is_live:
                    live[begin] = block
                else:
                    idle.append(block)
    for block in idle:
        model.free(block)
    return live


def divide(
    segment: int, size: int, live: list[int], sizes: dict[int, int]
) -> list[tuple[int, int, bool]]:
    """Return (begin, end, whether live) of each block of a segment.

    A gap behind a live block of the large pool that is too small for a block of its own belongs to
    that block.
    """
    parts: list[tuple[int, int, bool]] = []
    position = segment
    for address in [*live, segment + size]:
        gap = address - position
        if parts and 0 < gap <= LARGEST_SMALL_BLOCK and size != SMALL_SEGMENT:
            parts[-1] = (parts[-1][0], address, True)
        elif gap > 0:
            parts.append((position, address, False))
        if address in sizes and address < segment + size:
            parts.append((address, address + sizes[address], True))
            position = address + sizes[address]
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    return parts
