"""Private pools and the history of the allocator model: traces by hand, and what must hold."""

from __future__ import annotations

import contextlib
import ctypes
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_card import GIB, MIB, Block, OutOfMemoryError, VirtualCard

CAPTURED = 1  # the stream whose allocations go to a pool

# ---- pools


def test_streams_outside_of_the_route_keep_to_the_pools_of_everybody(card: VirtualCard) -> None:
    card.begin_pool(7, CAPTURED)
    blocks = [card.allocate(512, CAPTURED), card.allocate(512, 2)]
    assert sorted((part.pool, part.stream) for part in card.parts() if part.allocated) == [
        (0, 2),
        (7, CAPTURED),
    ]
    card.end_pool(7)
    later = card.allocate(512, CAPTURED)  # the pool's free rest is not for it
    assert card.now("reserved_bytes") == 3 * 2 * MIB
    for block in (*blocks, later):
        card.free(block)


def test_a_pool_reuses_its_own_blocks(card: VirtualCard) -> None:
    card.begin_pool(7, CAPTURED)
    first = card.allocate(3 * MIB, CAPTURED)
    card.free(first)
    assert card.allocate(3 * MIB, CAPTURED).address == first.address
    assert card.now("reserved_bytes") == 20 * MIB


def test_a_pool_keeps_its_segments_while_it_has_users(card: VirtualCard) -> None:
    card.begin_pool(7, CAPTURED)
    block = card.allocate(3 * MIB, CAPTURED)
    card.end_pool(7)
    card.free(block)
    card.empty_cache()
    assert card.now("reserved_bytes") == 20 * MIB
    card.release_pool(7)
    assert card.now("reserved_bytes") == 20 * MIB
    card.empty_cache()
    assert card.now("reserved_bytes") == 0
    assert not card.has_pool(7)


def test_a_pool_without_users_lives_as_long_as_its_blocks(card: VirtualCard) -> None:
    card.begin_pool(7, CAPTURED)
    block = card.allocate(3 * MIB, CAPTURED)
    card.end_pool(7)
    card.release_pool(7)
    card.empty_cache()
    assert card.has_pool(7)
    card.free(block)
    card.empty_cache()
    assert not card.has_pool(7)


def test_two_users_release_it_twice(card: VirtualCard) -> None:
    for _ in range(2):
        card.begin_pool(7, CAPTURED)
        card.free(card.allocate(1, CAPTURED))
        card.end_pool(7)
    card.release_pool(7)
    card.empty_cache()
    assert card.now("reserved_bytes") == 2 * MIB
    card.release_pool(7)
    card.empty_cache()
    assert card.now("reserved_bytes") == 0


def test_one_pool_can_be_emptied_alone(card: VirtualCard) -> None:
    for pool in (7, 8):
        card.begin_pool(pool, CAPTURED)
        card.free(card.allocate(1, CAPTURED))
        card.end_pool(pool)
        card.release_pool(pool)
    card.empty_pool(7)
    assert (card.has_pool(7), card.has_pool(8)) == (False, True)
    assert card.now("reserved_bytes") == 2 * MIB


def test_a_pool_may_never_split(card: VirtualCard) -> None:
    card.make_pool(7, never_splits=True)
    card.begin_pool(7, CAPTURED)
    assert card.allocate(512, CAPTURED).size == 2 * MIB
    assert card.allocate(3 * MIB, CAPTURED).size == 20 * MIB


def test_a_pool_may_serve_everybody_when_memory_runs_out(card: VirtualCard) -> None:
    card.make_pool(7, serves_when_full=True)
    card.begin_pool(7, CAPTURED)
    inside = card.allocate(600 * MIB, CAPTURED)
    card.end_pool(7)
    card.free(inside)
    block = card.allocate(600 * MIB, CAPTURED)
    assert block.address == inside.address
    with pytest.raises(OutOfMemoryError):
        card.allocate(600 * MIB, CAPTURED)
    card.free(block)


def test_the_text_of_a_full_card_names_private_pools(card: VirtualCard) -> None:
    card.begin_pool(7, CAPTURED)
    card.free(card.allocate(3 * MIB, CAPTURED))
    card.end_pool(7)
    kept = card.allocate(512)
    with pytest.raises(
        OutOfMemoryError,
        match=r"Of the allocated memory 20\.00 MiB is allocated by PyTorch, with 20\.00 MiB "
        r"allocated in private pools \(e\.g\., CUDA Graphs\), and 2\.00 MiB is reserved",
    ):
        card.allocate(GIB)
    card.free(kept)


def test_a_route_holds_back_what_needs_to_wait(card: VirtualCard) -> None:
    used = card.allocate(3 * MIB, 2)
    cached = card.allocate(600 * MIB, 2)
    card.free(cached)
    card.record_stream(used, 3)
    card.begin_pool(7, CAPTURED)
    card.free(used)  # nothing is queued on stream 3, but a capture has no moments
    card.allocate(3 * MIB, 2)
    assert card.now("active_bytes") == 6 * MIB
    with pytest.raises(OutOfMemoryError):  # nor is the cache emptied meanwhile
        card.allocate(700 * MIB, CAPTURED)
    assert card.now("reserved_bytes") == 620 * MIB
    card.end_pool(7)
    card.allocate(512, 2)
    assert card.now("active_bytes") == 3 * MIB + 512


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
def test_pools_never_share_and_leave_nothing(
    allocator_library: ctypes.CDLL, steps: list[tuple[str, int, int]], expandable: bool
) -> None:
    card = VirtualCard(allocator_library, GIB)
    card.configure(expandable_segments=expandable)
    live: list[tuple[Block, int]] = []  # with the pool it must lie in
    users: list[int] = []
    route = 0
    try:
        for action, number, stream in steps:
            if action == "allocate":
                with contextlib.suppress(OutOfMemoryError):
                    live.append((card.allocate(number, stream), route if stream == 1 else 0))
            elif action == "free" and live:
                card.free(live.pop(number % len(live))[0])
            elif action == "begin" and not route:
                card.begin_pool(number, CAPTURED)
                users.append(number)
                route = number
            elif action == "end" and route:
                card.end_pool(route)
                route = 0
            elif action == "empty":
                card.empty_cache()
            found = {part.address: part for part in card.parts() if part.allocated}
            parts = sorted(card.parts(), key=lambda part: part.address)
            assert all(a.address + a.size <= b.address for a, b in pairwise(parts))
            assert len(found) == len(live)
            for block, pool in live:
                assert (found[block.address].pool, found[block.address].size) == (pool, block.size)
        if route:
            card.end_pool(route)
        for pool in users:
            card.release_pool(pool)
        for block, _ in live:
            card.free(block)
        card.empty_cache()
        assert card.now("reserved_bytes") == card.now("allocated_bytes") == 0
        assert card.free_bytes() == GIB
        assert not any(card.has_pool(pool) for pool in users)
    finally:
        card.close()


# ---- history


def test_nothing_is_recorded_unasked(card: VirtualCard) -> None:
    card.free(card.allocate(1))
    assert card.history() == []


def test_each_step_is_recorded(card: VirtualCard) -> None:
    card.record_history()
    card.begin_pool(7, CAPTURED)
    block = card.allocate(1000, CAPTURED)
    card.end_pool(7)
    card.free(block)
    with pytest.raises(OutOfMemoryError):
        card.allocate(GIB + 1, 2)
    card.parts()
    assert card.history() == [
        ("segment_alloc", 2 * MIB, CAPTURED, 7),
        ("alloc", 1000, CAPTURED, 7),
        ("free_requested", 1000, CAPTURED, 7),
        ("free_completed", 1000, CAPTURED, 7),
        ("oom", GIB + 512, 2, 0),
        ("snapshot", 0, 0, 0),
    ]


def test_a_delayed_free_is_completed_later(card: VirtualCard) -> None:
    block = card.allocate(512)
    card.record_history()
    card.record_stream(block, 3)
    card.queue(3)
    card.free(block)
    assert [step[0] for step in card.history()] == ["free_requested"]
    card.finish(3)
    card.empty_cache()
    assert [step[0] for step in card.history()] == [
        "free_requested",
        "free_completed",
        "segment_free",
    ]


def test_mapping_is_recorded_of_expandable_segments(card: VirtualCard) -> None:
    card.configure(expandable_segments=True)
    card.record_history()
    card.free(card.allocate(30 * MIB))
    card.empty_cache()
    assert [(step[0], step[1]) for step in card.history()] == [
        ("segment_map", 40 * MIB),
        ("alloc", 30 * MIB),
        ("free_requested", 30 * MIB),
        ("free_completed", 30 * MIB),
        ("segment_unmap", 40 * MIB),
    ]


def test_the_oldest_steps_are_forgotten(card: VirtualCard) -> None:
    card.record_history(max_entries=2)
    for size in (512, 1024, 1536):
        card.allocate(size)
    assert [step[1] for step in card.history()] == [1024, 1536]
    card.record_history(enabled=False)
    assert card.history() == []
