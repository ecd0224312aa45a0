"""Private pools and the history of the allocator model: traces by hand, and invariants."""

from __future__ import annotations

import contextlib
import ctypes
from itertools import pairwise

import pytest
from allocator_model import GIB, MIB, AllocatorModel, Block, OutOfMemoryError
from hypothesis import given, settings
from hypothesis import strategies as st

CAPTURED = 1  # the stream whose allocations go to a pool

# ---- pools


def test_other_streams_use_the_default_pools(
    allocator: AllocatorModel,
) -> None:
    allocator.begin_pool(7, CAPTURED)
    blocks = [allocator.allocate(512, CAPTURED), allocator.allocate(512, 2)]
    assert sorted((part.pool, part.stream) for part in allocator.parts() if part.allocated) == [
        (0, 2),
        (7, CAPTURED),
    ]
    allocator.end_pool(7)
    later = allocator.allocate(512, CAPTURED)  # cannot use the pool's free rest
    assert allocator.now("reserved_bytes") == 3 * 2 * MIB
    for block in (*blocks, later):
        allocator.free(block)


def test_a_pool_reuses_its_own_blocks(allocator: AllocatorModel) -> None:
    allocator.begin_pool(7, CAPTURED)
    first = allocator.allocate(3 * MIB, CAPTURED)
    allocator.free(first)
    assert allocator.allocate(3 * MIB, CAPTURED).address == first.address
    assert allocator.now("reserved_bytes") == 20 * MIB


def test_a_pool_keeps_its_segments_while_it_has_users(allocator: AllocatorModel) -> None:
    allocator.begin_pool(7, CAPTURED)
    block = allocator.allocate(3 * MIB, CAPTURED)
    allocator.end_pool(7)
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == 20 * MIB
    allocator.release_pool(7)
    assert allocator.now("reserved_bytes") == 20 * MIB
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == 0
    assert not allocator.has_pool(7)


def test_a_pool_without_users_lives_as_long_as_its_blocks(allocator: AllocatorModel) -> None:
    allocator.begin_pool(7, CAPTURED)
    block = allocator.allocate(3 * MIB, CAPTURED)
    allocator.end_pool(7)
    allocator.release_pool(7)
    allocator.empty_cache()
    assert allocator.has_pool(7)
    allocator.free(block)
    allocator.empty_cache()
    assert not allocator.has_pool(7)


def test_a_pool_with_two_users_is_released_twice(allocator: AllocatorModel) -> None:
    for _ in range(2):
        allocator.begin_pool(7, CAPTURED)
        allocator.free(allocator.allocate(1, CAPTURED))
        allocator.end_pool(7)
    allocator.release_pool(7)
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == 2 * MIB
    allocator.release_pool(7)
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == 0


def test_a_single_pool_can_be_emptied(allocator: AllocatorModel) -> None:
    for pool in (7, 8):
        allocator.begin_pool(pool, CAPTURED)
        allocator.free(allocator.allocate(1, CAPTURED))
        allocator.end_pool(pool)
        allocator.release_pool(pool)
    allocator.free(allocator.allocate(3 * MIB))
    allocator.empty_pool(7)
    assert (allocator.has_pool(7), allocator.has_pool(8)) == (False, True)
    assert allocator.now("reserved_bytes") == 2 * MIB + 20 * MIB


def test_the_default_pools_are_not_emptied_during_a_capture(allocator: AllocatorModel) -> None:
    allocator.free(allocator.allocate(3 * MIB))
    allocator.begin_pool(7, CAPTURED)
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == 20 * MIB
    allocator.end_pool(7)
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == 0


def test_a_pool_may_never_split(allocator: AllocatorModel) -> None:
    allocator.make_pool(7, never_splits=True)
    allocator.begin_pool(7, CAPTURED)
    assert allocator.allocate(512, CAPTURED).size == 2 * MIB
    assert allocator.allocate(3 * MIB, CAPTURED).size == 20 * MIB


def test_a_pool_may_serve_other_requests_when_memory_runs_out(allocator: AllocatorModel) -> None:
    allocator.make_pool(7, serves_when_full=True)
    allocator.begin_pool(7, CAPTURED)
    inside = allocator.allocate(600 * MIB, CAPTURED)
    allocator.end_pool(7)
    allocator.free(inside)
    block = allocator.allocate(600 * MIB, CAPTURED)
    assert block.address == inside.address
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(600 * MIB, CAPTURED)
    allocator.free(block)


def test_out_of_memory_message_names_private_pools(allocator: AllocatorModel) -> None:
    allocator.begin_pool(7, CAPTURED)
    allocator.free(allocator.allocate(3 * MIB, CAPTURED))
    allocator.end_pool(7)
    kept = allocator.allocate(512)
    with pytest.raises(
        OutOfMemoryError,
        match=r"Of the allocated memory 20\.00 MiB is allocated by PyTorch, with 20\.00 MiB "
        r"allocated in private pools \(e\.g\., CUDA Graphs\), and 2\.00 MiB is reserved",
    ):
        allocator.allocate(GIB)
    allocator.free(kept)


def test_a_route_defers_freed_blocks_of_other_streams(allocator: AllocatorModel) -> None:
    used = allocator.allocate(3 * MIB, 2)
    cached = allocator.allocate(600 * MIB, 2)
    allocator.free(cached)
    allocator.record_stream(used, 3)
    allocator.begin_pool(7, CAPTURED)
    allocator.free(used)  # no work is queued on stream 3, but captures have no events
    allocator.allocate(3 * MIB, 2)
    assert allocator.now("active_bytes") == 6 * MIB
    with pytest.raises(OutOfMemoryError):  # the cache is not emptied either
        allocator.allocate(700 * MIB, CAPTURED)
    assert allocator.now("reserved_bytes") == 620 * MIB
    allocator.end_pool(7)
    allocator.allocate(512, 2)
    assert allocator.now("active_bytes") == 3 * MIB + 512


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 30 * MIB), st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 1000), st.just(0)),
        st.tuples(st.just("begin"), st.integers(1, 2), st.just(0)),
        st.tuples(st.just("end"), st.just(0), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=50,
)


@settings(max_examples=80, deadline=None)
@given(steps=STEPS, expandable=st.booleans())
def test_pools_never_share_blocks_and_leave_no_memory(
    allocator_library: ctypes.CDLL, steps: list[tuple[str, int, int]], expandable: bool
) -> None:
    allocator = AllocatorModel(allocator_library, GIB)
    allocator.configure(expandable_segments=expandable)
    live: list[tuple[Block, int]] = []  # with the expected pool
    users: list[int] = []
    route = 0
    try:
        for action, number, stream in steps:
            if action == "allocate":
                with contextlib.suppress(OutOfMemoryError):
                    live.append((allocator.allocate(number, stream), route if stream == 1 else 0))
            elif action == "free" and live:
                allocator.free(live.pop(number % len(live))[0])
            elif action == "begin" and not route:
                allocator.begin_pool(number, CAPTURED)
                users.append(number)
                route = number
            elif action == "end" and route:
                allocator.end_pool(route)
                route = 0
            elif action == "empty":
                allocator.empty_cache()
            found = {part.address: part for part in allocator.parts() if part.allocated}
            parts = sorted(allocator.parts(), key=lambda part: part.address)
            assert all(a.address + a.size <= b.address for a, b in pairwise(parts))
            assert len(found) == len(live)
            for block, pool in live:
                assert (found[block.address].pool, found[block.address].size) == (pool, block.size)
        if route:
            allocator.end_pool(route)
        for pool in users:
            allocator.release_pool(pool)
        for block, _ in live:
            allocator.free(block)
        allocator.empty_cache()
        assert allocator.now("reserved_bytes") == allocator.now("allocated_bytes") == 0
        assert allocator.free_bytes() == GIB
        assert not any(allocator.has_pool(pool) for pool in users)
    finally:
        allocator.close()


# ---- history


def test_recording_is_off_by_default(allocator: AllocatorModel) -> None:
    allocator.free(allocator.allocate(1))
    assert allocator.history() == []


def test_each_action_is_recorded(allocator: AllocatorModel) -> None:
    allocator.record_history()
    allocator.begin_pool(7, CAPTURED)
    block = allocator.allocate(1000, CAPTURED)
    allocator.end_pool(7)
    allocator.free(block)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(GIB + 1, 2)
    allocator.parts()
    assert allocator.history() == [
        ("segment_alloc", 2 * MIB, CAPTURED, 7),
        ("alloc", 1000, CAPTURED, 7),
        ("free_requested", 1000, CAPTURED, 7),
        ("free_completed", 1000, CAPTURED, 7),
        ("oom", GIB + 512, 2, 0),
        ("snapshot", 0, 0, 0),
    ]


def test_a_delayed_free_is_completed_later(allocator: AllocatorModel) -> None:
    block = allocator.allocate(512)
    allocator.record_history()
    allocator.record_stream(block, 3)
    allocator.queue(3)
    allocator.free(block)
    assert [step[0] for step in allocator.history()] == ["free_requested"]
    allocator.finish(3)
    allocator.empty_cache()
    assert [step[0] for step in allocator.history()] == [
        "free_requested",
        "free_completed",
        "segment_free",
    ]


def test_mapping_of_expandable_segments_is_recorded(allocator: AllocatorModel) -> None:
    allocator.configure(expandable_segments=True)
    allocator.record_history()
    allocator.free(allocator.allocate(30 * MIB))
    allocator.empty_cache()
    assert [(step[0], step[1]) for step in allocator.history()] == [
        ("segment_map", 40 * MIB),
        ("alloc", 30 * MIB),
        ("free_requested", 30 * MIB),
        ("free_completed", 30 * MIB),
        ("segment_unmap", 40 * MIB),
    ]


def test_the_oldest_actions_are_dropped(allocator: AllocatorModel) -> None:
    allocator.record_history(max_entries=2)
    for size in (512, 1024, 1536):
        allocator.allocate(size)
    assert [step[1] for step in allocator.history()] == [1024, 1536]
    allocator.record_history(enabled=False)
    assert allocator.history() == []
