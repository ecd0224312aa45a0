"""The allocator model against traces worked out by hand, with one test per rule.

Sizes are those of c10/core/AllocatorConfig.h in PyTorch 2.13. More than 400 lines: one list of
rules, in the order of the docs and the source.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Callable

import pytest
from allocator_model import GIB, KIB, MIB, AllocatorModel, Block, OutOfMemoryError

# ---- sizes


@pytest.mark.parametrize(
    ("request_size", "block_size"),
    [
        (1, 512),
        (511, 512),
        (512, 512),
        (513, 1024),
        (1 * MIB, 1 * MIB),
        (1 * MIB + 1, 1 * MIB + 512),
    ],
)
def test_request_is_rounded_up_to_512_bytes(
    allocator: AllocatorModel, request_size: int, block_size: int
) -> None:
    assert allocator.allocate(request_size).size == block_size
    assert allocator.now("allocated_bytes") == block_size
    assert allocator.now("requested_bytes") == request_size


def test_nothing_is_allocated_for_zero_bytes(allocator: AllocatorModel) -> None:
    block = allocator.allocate(0)
    assert block.handle == 0
    allocator.free(block)
    assert set(allocator.stats().values()) == {0}


@pytest.mark.parametrize(
    ("request_size", "segment_size"),
    [
        (1, 2 * MIB),  # small pool: 2 MiB
        (1 * MIB, 2 * MIB),  # exactly 1 MiB is still small
        (1 * MIB + 1, 20 * MIB),  # large, under 10 MiB: 20 MiB
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),  # from 10 MiB: the next multiple of 2 MiB
        (10 * MIB + 1, 12 * MIB),
        (21 * MIB, 22 * MIB),
    ],
)
def test_segment_size_of_a_request(
    allocator: AllocatorModel, request_size: int, segment_size: int
) -> None:
    allocator.allocate(request_size)
    assert allocator.now("reserved_bytes") == segment_size
    assert allocator.free_bytes() == GIB - segment_size


# ---- pools


def test_small_and_large_blocks_do_not_share_segments(allocator: AllocatorModel) -> None:
    allocator.allocate(1 * MIB)  # 2 MiB segment, 1 MiB left
    allocator.allocate(2 * MIB)  # 20 MiB segment, 18 MiB left
    allocator.allocate(1 * KIB)  # fits into both; belongs to the small pool
    assert allocator.now("reserved_bytes", "small_pool") == 2 * MIB
    assert allocator.now("reserved_bytes", "large_pool") == 20 * MIB
    assert allocator.now("allocated_bytes", "small_pool") == 1 * MIB + 1 * KIB
    assert allocator.now("allocated_bytes", "large_pool") == 2 * MIB
    assert allocator.now("allocated_bytes") == 3 * MIB + 1 * KIB
    assert allocator.now("segment", "small_pool") == allocator.now("segment", "large_pool") == 1


def test_each_stream_has_its_own_free_blocks(allocator: AllocatorModel) -> None:
    first = allocator.allocate(1 * KIB, stream=0)
    allocator.free(first)
    other = allocator.allocate(1 * KIB, stream=7)
    assert other.address != first.address
    assert allocator.now("reserved_bytes") == 2 * 2 * MIB
    again = allocator.allocate(1 * KIB, stream=0)
    assert again.address == first.address


# ---- choosing a block


def three_holes(allocator: AllocatorModel, sizes: list[int]) -> list[Block]:
    """Return free blocks of these sizes, separated by allocated blocks."""
    holes = []
    for size in sizes:
        holes.append(allocator.allocate(size))
        allocator.allocate(512)
    for hole in holes:
        allocator.free(hole)
    return holes


def test_best_fit_takes_the_smallest_that_is_large_enough(allocator: AllocatorModel) -> None:
    large, small, medium = three_holes(allocator, [8 * KIB, 2 * KIB, 4 * KIB])
    assert allocator.allocate(3 * KIB).address == medium.address
    assert allocator.allocate(2 * KIB).address == small.address
    assert allocator.allocate(5 * KIB).address == large.address
    assert allocator.now("reserved_bytes") == 2 * MIB


def test_equal_blocks_are_taken_from_the_oldest_segment(allocator: AllocatorModel) -> None:
    blocks = [allocator.allocate(12 * MIB) for _ in range(3)]  # three segments of 12 MiB
    for block in (blocks[2], blocks[0], blocks[1]):  # freed in another order
        allocator.free(block)
    assert [allocator.allocate(12 * MIB).address for _ in range(3)] == [b.address for b in blocks]


def test_equal_blocks_in_a_segment_are_taken_by_address(allocator: AllocatorModel) -> None:
    first, second, third = three_holes(allocator, [2 * KIB, 2 * KIB, 2 * KIB])
    assert allocator.allocate(2 * KIB).address == first.address
    assert allocator.allocate(2 * KIB).address == second.address
    assert allocator.allocate(2 * KIB).address == third.address


# ---- splitting


def test_small_block_is_split_when_512_bytes_remain(allocator: AllocatorModel) -> None:
    block = allocator.allocate(1 * KIB)
    allocator.allocate(512)
    allocator.free(block)
    # A request of 512 in a block of 1024: the other 512 are split off and stay free.
    half = allocator.allocate(512)
    assert (half.address, half.size) == (block.address, 512)
    assert allocator.allocate(512).address == block.address + 512


def test_large_block_is_split_when_more_than_1_mib_remains(allocator: AllocatorModel) -> None:
    # 20 MiB segments: 3 MiB leaves 17 MiB, so that it is split.
    block = allocator.allocate(3 * MIB)
    assert block.size == 3 * MIB
    assert allocator.now("inactive_split_bytes") == 17 * MIB
    allocator.allocate(2 * MIB)  # separates the hole from the rest
    allocator.free(block)
    # 2 MiB of the 3 MiB hole leave exactly 1 MiB, which is too little to split.
    whole = allocator.allocate(2 * MIB)
    assert (whole.address, whole.size) == (block.address, 3 * MIB)
    assert allocator.now("allocated_bytes") == 5 * MIB
    assert allocator.now("requested_bytes") == 4 * MIB


def test_large_rest_of_just_over_1_mib_is_split_off(allocator: AllocatorModel) -> None:
    block = allocator.allocate(3 * MIB + 512)
    allocator.allocate(2 * MIB)
    allocator.free(block)
    assert allocator.allocate(2 * MIB).size == 2 * MIB  # 1 MiB + 512 B remain


def test_inactive_split_counts_free_blocks_of_split_segments(allocator: AllocatorModel) -> None:
    first = allocator.allocate(512)  # 2 MiB - 512 remain
    assert (allocator.now("inactive_split"), allocator.now("inactive_split_bytes")) == (
        1,
        2 * MIB - 512,
    )
    second = allocator.allocate(512)
    assert (allocator.now("inactive_split"), allocator.now("inactive_split_bytes")) == (
        1,
        2 * MIB - 1024,
    )
    allocator.free(first)  # a hole and the rest
    assert (allocator.now("inactive_split"), allocator.now("inactive_split_bytes")) == (
        2,
        2 * MIB - 512,
    )
    allocator.free(second)  # everything merges into one segment, which is not split
    assert (allocator.now("inactive_split"), allocator.now("inactive_split_bytes")) == (0, 0)
    stats = allocator.stats()
    assert stats["inactive_split.all.peak"] == 2
    assert stats["inactive_split_bytes.small_pool.peak"] == 2 * MIB - 512


# ---- freeing


def test_free_block_merges_with_both_neighbours(allocator: AllocatorModel) -> None:
    blocks = [allocator.allocate(4 * MIB) for _ in range(4)]  # one 20 MiB segment, 4 MiB left
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    assert len(allocator.parts()) == 5
    allocator.free(blocks[1])  # 12 MiB in one piece
    assert [(p.size // MIB, p.allocated) for p in allocator.parts()] == [
        (12, False),
        (4, True),
        (4, False),
    ]
    # Without the merge 9 MiB would need a new segment.
    assert allocator.allocate(9 * MIB).address == blocks[0].address
    assert allocator.now("reserved_bytes") == 20 * MIB


def test_freed_memory_stays_reserved(allocator: AllocatorModel) -> None:
    allocator.free(allocator.allocate(5 * MIB))
    assert allocator.now("allocated_bytes") == 0
    assert allocator.now("reserved_bytes") == 20 * MIB
    assert allocator.stats()["num_device_free"] == 0


# ---- other streams


def test_block_used_on_another_stream_waits_for_its_work(allocator: AllocatorModel) -> None:
    block = allocator.allocate(12 * MIB, stream=0)
    allocator.record_stream(block, 1)
    allocator.queue(1)
    allocator.free(block)
    # No longer allocated, but active: it cannot be handed out.
    assert allocator.now("allocated_bytes") == allocator.now("allocation") == 0
    assert allocator.now("active_bytes") == allocator.now("requested_bytes") == 12 * MIB
    second = allocator.allocate(12 * MIB, stream=0)
    assert second.address != block.address
    assert allocator.now("active_bytes") == 24 * MIB
    allocator.finish(1)
    # The next allocation, of any size, frees the block.
    allocator.allocate(512)
    assert allocator.now("active_bytes") == 12 * MIB + 512
    assert allocator.allocate(12 * MIB, stream=0).address == block.address


def test_block_waits_for_the_last_of_several_streams(allocator: AllocatorModel) -> None:
    block = allocator.allocate(12 * MIB)
    for stream in (1, 2):
        allocator.record_stream(block, stream)
        allocator.queue(stream)
    allocator.free(block)
    allocator.finish(1)
    allocator.allocate(512)
    assert allocator.now("active_bytes") == 12 * MIB + 512
    allocator.finish(2)
    allocator.allocate(512)
    assert allocator.now("active_bytes") == 1024


def test_only_work_queued_before_the_free_counts(allocator: AllocatorModel) -> None:
    block = allocator.allocate(12 * MIB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    allocator.queue(1)
    assert allocator.allocate(12 * MIB).address == block.address


def test_recording_the_allocation_stream_has_no_effect(allocator: AllocatorModel) -> None:
    block = allocator.allocate(12 * MIB, stream=4)
    allocator.record_stream(block, 4)
    allocator.queue(4)
    allocator.free(block)
    assert allocator.now("active_bytes") == 0


def test_waiting_block_does_not_merge(allocator: AllocatorModel) -> None:
    waiting, other = allocator.allocate(4 * MIB), allocator.allocate(4 * MIB)
    allocator.record_stream(waiting, 1)
    allocator.queue(1)
    allocator.free(waiting)
    allocator.free(other)
    assert [p.size // MIB for p in allocator.parts()] == [4, 16]
    allocator.finish(1)
    allocator.allocate(512)
    assert [p.size // MIB for p in allocator.parts() if not p.small] == [20]


def test_emptying_the_cache_waits_for_other_streams(allocator: AllocatorModel) -> None:
    block = allocator.allocate(12 * MIB)
    allocator.record_stream(block, 1)
    allocator.queue(1)
    allocator.free(block)
    assert not allocator.is_finished(1)
    allocator.empty_cache()
    assert allocator.is_finished(1)
    assert allocator.now("reserved_bytes") == allocator.now("active_bytes") == 0
    assert allocator.stats()["num_sync_all_streams"] == 1


# ---- statistics


def test_peak_follows_every_increase_and_resets_to_now(allocator: AllocatorModel) -> None:
    first = allocator.allocate(3 * MIB)
    second = allocator.allocate(4 * MIB)
    allocator.free(first)
    assert allocator.peak("allocated_bytes") == allocator.peak("active_bytes") == 7 * MIB
    assert allocator.peak("allocation") == 2
    allocator.reset_peaks()
    assert allocator.peak("allocated_bytes") == 4 * MIB
    assert allocator.peak("reserved_bytes") == 20 * MIB
    allocator.free(second)
    assert allocator.peak("allocated_bytes") == 4 * MIB


def test_accumulated_numbers_sum_up_and_reset(allocator: AllocatorModel) -> None:
    for _ in range(3):
        allocator.free(allocator.allocate(3 * MIB))
    stats = allocator.stats()
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 9 * MIB
    assert stats["allocation.large_pool.allocated"] == 3
    assert stats["segment.all.allocated"] == stats["num_device_alloc"] == 1
    allocator.reset_accumulated()
    stats = allocator.stats()
    assert stats["allocated_bytes.all.allocated"] == stats["num_device_alloc"] == 0
    assert stats["reserved_bytes.all.current"] == 20 * MIB


# ---- a full GPU


def test_emptying_the_cache_releases_whole_free_segments_only(allocator: AllocatorModel) -> None:
    whole = allocator.allocate(12 * MIB)
    split, kept = allocator.allocate(4 * MIB), allocator.allocate(4 * MIB)
    small = allocator.allocate(512)
    for block in (whole, split, small):
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == 20 * MIB  # the segment of the live block
    assert allocator.stats()["num_device_free"] == 2
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == allocator.now("segment") == 0
    assert allocator.free_bytes() == GIB


def test_full_gpu_empties_the_cache_and_retries(
    make_allocator: Callable[[int], AllocatorModel],
) -> None:
    allocator = make_allocator(64 * MIB)
    large, small = allocator.allocate(40 * MIB), allocator.allocate(512)
    allocator.free(large)
    allocator.free(small)
    # 40 + 2 reserved: 50 fit only after both segments are released.
    allocator.allocate(50 * MIB)
    stats = allocator.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"], stats["num_device_free"]) == (1, 0, 2)
    assert allocator.now("reserved_bytes") == 50 * MIB


def test_retry_waits_for_blocks_used_on_other_streams(
    make_allocator: Callable[[int], AllocatorModel],
) -> None:
    allocator = make_allocator(64 * MIB)
    block = allocator.allocate(40 * MIB)
    allocator.record_stream(block, 1)
    allocator.queue(1)
    allocator.free(block)
    assert allocator.allocate(50 * MIB).size == 50 * MIB


def test_out_of_memory_counts_and_leaves_the_rest_usable(
    make_allocator: Callable[[int], AllocatorModel],
) -> None:
    allocator = make_allocator(64 * MIB)
    block = allocator.allocate(40 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.allocate(30 * MIB)
    stats = allocator.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 1)
    assert allocator.now("allocated_bytes") == 40 * MIB
    allocator.free(block)
    assert allocator.allocate(30 * MIB).size == 30 * MIB


def test_out_of_memory_message_has_the_size_of_the_segment(
    make_allocator: Callable[[int], AllocatorModel],
) -> None:
    allocator = make_allocator(48 * MIB)
    allocator.allocate(29 * MIB)  # a segment of 30
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.allocate(3 * MIB // 2)  # 1.5 MiB would need a segment of 20
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 48.00 MiB"
        " of which 18.00 MiB is free. Including non-PyTorch memory, this process has 30.00 MiB"
        " memory in use. Of the allocated memory 30.00 MiB is allocated by PyTorch, and 0 bytes is"
        " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try"
        " setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See"
        " documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda"
        ".html#optimizing-memory-usage-with-pytorch-alloc-conf)"
    )


def test_sizes_in_the_message_change_unit_above_the_bound(allocator_library: ctypes.CDLL) -> None:
    def text(size: int) -> str:
        buffer = ctypes.create_string_buffer(64)
        allocator_library.format_bytes_of(ctypes.c_size_t(size), buffer, ctypes.c_size_t(64))
        return buffer.value.decode()

    # c10::CachingAllocator::format_size compares with <=, so that 1 MiB is still in KiB.
    sizes = [0, 1024, 1536, MIB, 3 * MIB // 2, GIB, 3 * GIB // 2]
    assert [text(size) for size in sizes] == [
        "0 bytes",
        "1024 bytes",
        "1.50 KiB",
        "1024.00 KiB",
        "1.50 MiB",
        "1024.00 MiB",
        "1.50 GiB",
    ]


def test_exabyte_request_has_its_own_message(allocator: AllocatorModel) -> None:
    with pytest.raises(OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        allocator.allocate(1 << 60)
    assert allocator.stats()["num_ooms"] == 0


def test_memory_fraction_limits_what_is_reserved(
    make_allocator: Callable[[int], AllocatorModel],
) -> None:
    allocator = make_allocator(100 * MIB)
    assert allocator.memory_fraction() == 1
    allocator.set_memory_fraction(0.5)
    assert allocator.memory_fraction() == 0.5
    block = allocator.allocate(40 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.allocate(12 * MIB)  # 52 of 50 MiB allowed
    assert "60.00 MiB is free." in str(caught.value)
    assert "memory in use. 50.00 MiB allowed; Of the allocated" in str(caught.value)
    allocator.free(block)
    assert allocator.allocate(50 * MIB).size == 50 * MIB


def test_memory_of_other_programs_is_not_available(allocator: AllocatorModel) -> None:
    assert allocator.reserve_externally(1000 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"of which 24\.00 MiB is free"):
        allocator.allocate(25 * MIB)
    assert allocator.allocate(24 * MIB).size == 24 * MIB


# ---- threads


def test_several_threads_share_one_allocator(allocator: AllocatorModel) -> None:
    def work(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(500):
            blocks = [allocator.allocate(generator.randint(1, 3 * MIB), seed % 2) for _ in range(4)]
            for block in blocks:
                allocator.free(block)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert allocator.now("allocated_bytes") == allocator.now("active_bytes") == 0
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == 0
