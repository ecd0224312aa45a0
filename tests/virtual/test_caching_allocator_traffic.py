"""The allocator model under random traffic: against a slow reference, and invariants."""

from __future__ import annotations

import ctypes
import random
from itertools import pairwise

import pytest
from allocator_model import GIB, KIB, MIB, AllocatorModel, Block, OutOfMemoryError
from allocator_reference import OutOfMemoryError as ReferenceFull
from allocator_reference import ReferenceAllocator
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 2 * MIB),
    st.integers(1, 40 * MIB),
    st.sampled_from([512, 1 * MIB, 1 * MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), SIZES, st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 1000), st.just(0)),
        st.tuples(st.just("record"), st.integers(0, 1000), st.integers(0, 2)),
        st.tuples(st.just("queue"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("finish"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, capacity=st.sampled_from([64 * MIB, 200 * MIB, GIB]))
def test_agrees_with_the_slow_reference(
    allocator_library: ctypes.CDLL, steps: list[tuple[str, int, int]], capacity: int
) -> None:
    allocator, reference = AllocatorModel(allocator_library, capacity), ReferenceAllocator(capacity)
    live = []
    try:
        for action, number, stream in steps:
            if action == "allocate":
                has_room = check_room(allocator, number, stream)
                try:
                    segment, part = reference.allocate(number, stream)
                except ReferenceFull:
                    assert not has_room
                    with pytest.raises(OutOfMemoryError):
                        allocator.allocate(number, stream)
                    continue
                waiting = allocator.now("active") - allocator.now("allocation")
                assert has_room or waiting  # a deferred block may have become free
                block = allocator.allocate(number, stream)
                assert (block.address, block.size) == (segment.address_of(part), part.size)
                live.append((block, segment, part))
            elif action == "free" and live:
                block, segment, part = live.pop(number % len(live))
                allocator.free(block)
                reference.free(segment, part)
            elif action == "record" and live:
                block, segment, part = live[number % len(live)]
                allocator.record_stream(block, stream)
                part.used_on |= {stream} - {segment.stream}
            elif action in ("queue", "finish"):
                getattr(allocator, action)(number)
                getattr(reference, action)(number)
            elif action == "empty":
                allocator.empty_cache()
                reference.empty_cache()
            assert allocator.now("reserved_bytes") == reference.reserved()
            assert allocator.now("allocated_bytes") == reference.allocated()
            assert allocator.now("active_bytes") == reference.active()
            assert allocator.now("requested_bytes") == reference.requested()
            splits = (allocator.now("inactive_split"), allocator.now("inactive_split_bytes"))
            assert splits == reference.inactive_split()
    finally:
        allocator.close()


def test_agrees_with_the_slow_reference_about_many_free_blocks(
    allocator_library: ctypes.CDLL,
) -> None:
    allocator, reference = AllocatorModel(allocator_library, GIB), ReferenceAllocator(GIB)
    chance = random.Random(0)
    try:
        # Two streams with 300 gaps each: more than what lies in one piece in the allocator.
        blocks = []
        for number in range(1200):
            size, stream = chance.choice([512, 1024, chance.randrange(1, 8 * KIB)]), number % 2
            blocks.append((allocator.allocate(size, stream), *reference.allocate(size, stream)))
        for block, segment, part in blocks[::4] + blocks[1::4]:
            allocator.free(block)
            reference.free(segment, part)
        for _ in range(150):
            size, stream = chance.randrange(1, 9 * KIB), chance.randrange(2)
            block = allocator.allocate(size, stream)
            segment, part = reference.allocate(size, stream)
            assert (block.address, block.size) == (segment.address_of(part), part.size)
            if chance.random() < 0.5:
                allocator.free(block)
                reference.free(segment, part)
        splits = (allocator.now("inactive_split"), allocator.now("inactive_split_bytes"))
        assert splits == reference.inactive_split()
    finally:
        allocator.close()


@settings(max_examples=100, deadline=None)
@given(
    steps=STEPS,
    expandable=st.booleans(),
    max_split=st.sampled_from([24 * MIB, 2**64 - 1]),
    garbage=st.sampled_from([0.0, 0.3]),
    divisions=st.sampled_from([0, 4]),
)
def test_sums_hold_under_every_option(
    allocator_library: ctypes.CDLL,
    steps: list[tuple[str, int, int]],
    expandable: bool,
    max_split: int,
    garbage: float,
    divisions: int,
) -> None:
    allocator = AllocatorModel(allocator_library, 300 * MIB)
    allocator.configure(
        expandable_segments=expandable,
        max_split=max_split,
        garbage_collection_threshold=garbage,
        roundup_power2_divisions=(divisions,) * 16,
    )
    allocator.set_memory_fraction(0.9)
    live: list[Block] = []
    peaks = {"allocated_bytes": 0, "reserved_bytes": 0}
    try:
        for action, number, stream in steps:
            if action == "allocate":
                has_room = check_room(allocator, number, stream)
                try:
                    live.append(allocator.allocate(number, stream))
                except OutOfMemoryError:
                    assert not has_room
            elif action == "free" and live:
                allocator.free(live.pop(number % len(live)))
            elif action == "record" and live:
                allocator.record_stream(live[number % len(live)], stream)
            elif action in ("queue", "finish"):
                getattr(allocator, action)(number)
            elif action == "empty":
                allocator.empty_cache()
            check_sums(allocator, live)
            for name in peaks:
                peaks[name] = max(peaks[name], allocator.now(name))
                assert allocator.peak(name) >= peaks[name]
        for block in live:
            allocator.free(block)
        allocator.empty_cache()
        assert all(
            value == 0 for key, value in allocator.stats().items() if key.endswith("current")
        )
        assert allocator.free_bytes() == 300 * MIB
        assert allocator.parts() == []
    finally:
        allocator.close()


def check_room(allocator: AllocatorModel, size: int, stream: int) -> bool:
    before = allocator.parts(), allocator.stats(), allocator.free_bytes()
    has_room = allocator.has_room(size, stream)
    assert (allocator.parts(), allocator.stats(), allocator.free_bytes()) == before
    return has_room


def check_sums(allocator: AllocatorModel, live: list[Block]) -> None:
    parts = allocator.parts()
    stats = allocator.stats()
    for before, after in pairwise(parts):
        assert before.address + before.size <= after.address
        if before.segment == after.segment:
            assert before.address + before.size == after.address
            idle = not before.active and not after.active
            assert not idle, "two free neighbours were not merged"
    assert {(b.address, b.size) for b in live} == {
        (p.address, p.size) for p in parts if p.allocated
    }
    assert stats["allocated_bytes.all.current"] == sum(b.size for b in live)
    assert stats["allocation.all.current"] == len(live)
    assert stats["reserved_bytes.all.current"] == sum(p.size for p in parts)
    assert stats["active_bytes.all.current"] == sum(p.size for p in parts if p.active)
    assert stats["requested_bytes.all.current"] == sum(p.requested for p in parts if p.active)
    assert allocator.free_bytes() == 300 * MIB - stats["reserved_bytes.all.current"]
    for key, value in stats.items():
        if ".all." in key and key.endswith(("current", "allocated", "freed")):
            pools = (key.replace(".all.", f".{pool}_pool.") for pool in ("small", "large"))
            assert value == sum(stats[pool] for pool in pools), key
        if key.endswith(".current"):
            assert 0 <= value <= stats[key.replace("current", "peak")]
