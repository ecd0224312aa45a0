"""The settings of PYTORCH_ALLOC_CONF in the allocator model, with traces worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from allocator_model import GIB, KIB, MIB, AllocatorModel, OutOfMemoryError

# ---- roundup_power2_divisions


@pytest.mark.parametrize(
    ("request_size", "block_size"),
    [
        # 4 steps between 1024 and 2048 are 256 apart, but 1200 <= 4 * 512: multiples of 512.
        (1200, 1536),
        # 2049 lies in 2048..4096, steps of 512.
        (2049, 2560),
        # 1.1 MiB lies in 1..2 MiB, steps of 256 KiB: 1.25 MiB.
        (int(1.1 * MIB), 1 * MIB + 256 * KIB),
        # A power of 2 is unchanged.
        (4 * MIB, 4 * MIB),
        # 8..16 MiB has 8 steps, of 1 MiB each: 9.5 becomes 10.
        (9 * MIB + 512 * KIB, 10 * MIB),
        # From 32 GiB the last interval applies; 1 division means none.
        (33 * GIB + 1, 33 * GIB + 512),
    ],
)
def test_roundup_power2_divisions(
    make_allocator: Callable[[int], AllocatorModel], request_size: int, block_size: int
) -> None:
    allocator = make_allocator(80 * GIB)
    # [<2 MiB: 4, 2..8 MiB: 4, 8..16 MiB: 8, ..., >=32 GiB: 1]
    allocator.configure(roundup_power2_divisions=(4, 4, 4, 8) + (4,) * 11 + (1,))
    assert allocator.allocate(request_size).size == block_size


# ---- max_split_size_mb


def test_oversize_block_is_neither_split_nor_used_for_small_requests(
    allocator: AllocatorModel,
) -> None:
    allocator.configure(max_split=40 * MIB)
    block = allocator.allocate(50 * MIB)
    stats = allocator.stats()
    assert stats["oversize_allocations.current"] == stats["oversize_segments.current"] == 1
    allocator.free(block)
    assert allocator.stats()["oversize_allocations.current"] == 0
    # 30 MiB is below the bound and cannot use an oversize block.
    assert allocator.allocate(30 * MIB).address != block.address
    # 45 MiB is oversize, and 50 < 45 + 20, so it takes the whole block.
    again = allocator.allocate(45 * MIB)
    assert (again.address, again.size) == (block.address, 50 * MIB)


def test_oversize_block_serves_only_requests_near_its_size(allocator: AllocatorModel) -> None:
    allocator.configure(max_split=40 * MIB, max_non_split_rounding=20 * MIB)
    block = allocator.allocate(60 * MIB)
    allocator.free(block)
    assert allocator.allocate(40 * MIB).address != block.address  # 60 >= 40 + 20
    assert allocator.allocate(42 * MIB).address == block.address


def test_one_large_enough_oversize_block_is_released_first(
    make_allocator: Callable[[int], AllocatorModel],
) -> None:
    allocator = make_allocator(200 * MIB)
    allocator.configure(max_split=40 * MIB)
    blocks = [allocator.allocate(size * MIB) for size in (90, 50, 20)]
    for block in blocks:
        allocator.free(block)
    # 160 reserved, 40 free. For 60 MiB the 90 MiB block is too large to use (90 >= 80) and is
    # released. The other blocks stay, and the cache is not emptied.
    allocator.allocate(60 * MIB)
    assert allocator.now("reserved_bytes") == (60 + 50 + 20) * MIB
    stats = allocator.stats()
    assert (stats["num_alloc_retries"], stats["num_sync_all_streams"]) == (0, 0)
    assert stats["oversize_segments.current"] == 2


def test_several_oversize_blocks_are_released_largest_first(
    make_allocator: Callable[[int], AllocatorModel],
) -> None:
    allocator = make_allocator(200 * MIB)
    allocator.configure(max_split=40 * MIB)
    blocks = [allocator.allocate(size * MIB) for size in (60, 50, 40, 20)]
    for block in blocks:
        allocator.free(block)
    # 170 reserved. 100 MiB needs 60 + 50; 40 and 20 stay.
    allocator.allocate(100 * MIB)
    assert allocator.now("reserved_bytes") == (100 + 40 + 20) * MIB
    assert allocator.stats()["num_alloc_retries"] == 0


def test_blocks_below_the_bound_are_not_released_for_an_oversize_request(
    make_allocator: Callable[[int], AllocatorModel],
) -> None:
    allocator = make_allocator(200 * MIB)
    allocator.configure(max_split=40 * MIB)
    blocks = [allocator.allocate(size * MIB) for size in (60, 50, 40, 20)]
    for block in blocks:
        allocator.free(block)
    # 60 + 50 + 40 are less than 160; the 20 MiB block goes only with the whole cache.
    allocator.allocate(160 * MIB)
    assert allocator.now("reserved_bytes") == 160 * MIB
    assert allocator.stats()["num_alloc_retries"] == 1


# ---- garbage_collection_threshold


def make_old_and_young_segments(allocator: AllocatorModel, *, threshold: float) -> None:
    """Leave 60 MiB free for longer than 50 MiB on stream 0, and 12 MiB in use on stream 1."""
    allocator.configure(garbage_collection_threshold=threshold)
    allocator.set_memory_fraction(400 * MIB / GIB)
    old, young = allocator.allocate(60 * MIB), allocator.allocate(50 * MIB)  # searches 1 and 2
    other = allocator.allocate(12 * MIB, stream=1)  # search 3
    allocator.free(old)
    for _ in range(2):  # searches 4 and 5; a block's age is counted in searches
        allocator.free(other)
        other = allocator.allocate(12 * MIB, stream=1)
    allocator.free(young)


def test_garbage_collection_releases_the_older_half(allocator: AllocatorModel) -> None:
    make_old_and_young_segments(allocator, threshold=0.5)
    allocator.allocate(100 * MIB)  # search 6: 122 MiB, below the threshold of 200 MiB
    assert allocator.stats()["num_device_free"] == 0
    # Search 7: 222 - 200 = 22 MiB to gain. Ages 7 - 3 = 4 and 7 - 5 = 2, the average is 3.
    allocator.allocate(70 * MIB)
    assert allocator.now("reserved_bytes") == (50 + 12 + 100 + 70) * MIB
    stats = allocator.stats()
    assert (stats["num_device_free"], stats["num_sync_all_streams"]) == (1, 0)


def test_garbage_collection_continues_until_enough_is_released(allocator: AllocatorModel) -> None:
    make_old_and_young_segments(allocator, threshold=0.15)
    # 122 - 60 = 62 MiB to gain: the older 60 MiB are too little, so the other block goes too.
    allocator.allocate(70 * MIB)
    assert allocator.now("reserved_bytes") == (12 + 70) * MIB
    assert allocator.stats()["num_device_free"] == 2


def test_garbage_collection_leaves_split_segments_alone(allocator: AllocatorModel) -> None:
    allocator.configure(garbage_collection_threshold=0.01)
    allocator.set_memory_fraction(0.5)
    half, _ = allocator.allocate(30 * MIB), allocator.allocate(15 * MIB)
    whole, other = allocator.allocate(12 * MIB), allocator.allocate(12 * MIB, stream=1)
    allocator.free(half)
    allocator.allocate(4 * MIB)  # splits the 30 MiB block
    for _ in range(3):
        allocator.free(other)
        other = allocator.allocate(12 * MIB, stream=1)
    allocator.free(whole)
    # The rest of the split block is the oldest. If it counted, the average age would save the
    # 12 MiB block. It does not count, so the 12 MiB block is the only candidate.
    allocator.allocate(70 * MIB)
    assert allocator.now("reserved_bytes") == (30 + 16 + 12 + 70) * MIB


def test_garbage_collection_needs_threshold_and_fraction(allocator: AllocatorModel) -> None:
    allocator.configure(garbage_collection_threshold=0.01)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(70 * MIB)
    assert allocator.now("reserved_bytes") == 130 * MIB


# ---- expandable_segments


def test_expandable_segment_grows_by_pages(allocator: AllocatorModel) -> None:
    allocator.configure(expandable_segments=True)
    first = allocator.allocate(3 * MIB)  # one page of 20 MiB
    assert allocator.now("reserved_bytes") == 20 * MIB
    second = allocator.allocate(30 * MIB)  # 17 MiB are free; one more page is mapped
    assert second.address == first.address + first.size
    assert allocator.now("reserved_bytes") == 40 * MIB
    stats = allocator.stats()
    assert stats["num_device_alloc"] == 2
    assert stats["segment.all.current"] == 0  # expandable segments are not counted
    assert stats["inactive_split.all.peak"] == 0


def test_expandable_segment_of_the_small_pool_has_pages_of_2_mib(allocator: AllocatorModel) -> None:
    allocator.configure(expandable_segments=True)
    allocator.allocate(512)
    assert allocator.now("reserved_bytes") == 2 * MIB


def test_expandable_blocks_are_split_to_512_bytes_in_the_large_pool(
    allocator: AllocatorModel,
) -> None:
    allocator.configure(expandable_segments=True)
    block = allocator.allocate(3 * MIB)
    allocator.allocate(2 * MIB)
    allocator.free(block)
    # A rest of 1 MiB would count as allocated without expandable segments.
    assert allocator.allocate(2 * MIB).size == 2 * MIB


def test_emptying_unmaps_whole_pages_in_the_middle(allocator: AllocatorModel) -> None:
    allocator.configure(expandable_segments=True)
    blocks = [allocator.allocate(size * MIB) for size in (10, 60, 10)]  # 80 MiB, four pages
    allocator.free(blocks[1])
    allocator.empty_cache()
    # 10..70 is free; its whole pages are 20..40 and 40..60.
    assert allocator.now("reserved_bytes") == 40 * MIB
    assert allocator.now("allocated_bytes") == 20 * MIB
    # 60 MiB fit there again, at the lowest address, after mapping two pages.
    assert allocator.allocate(60 * MIB).address == blocks[1].address
    assert allocator.now("reserved_bytes") == 80 * MIB


def test_expandable_segment_disappears_with_its_last_page(allocator: AllocatorModel) -> None:
    allocator.configure(expandable_segments=True)
    first = allocator.allocate(30 * MIB)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == 0
    assert allocator.parts() == []
    second = allocator.allocate(30 * MIB)
    # 9/8 of 1 GiB, rounded up to pages of 20 MiB, lie between the two.
    assert second.address - first.address == -(-9 * GIB // 8 // (20 * MIB)) * 20 * MIB


def test_full_gpu_with_expandable_segments(
    make_allocator: Callable[[int], AllocatorModel],
) -> None:
    allocator = make_allocator(100 * MIB)
    allocator.configure(expandable_segments=True)
    first, second = allocator.allocate(50 * MIB), allocator.allocate(50 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"Tried to allocate 20\.00 MiB"):
        allocator.allocate(2 * MIB)
    allocator.free(first)
    assert allocator.allocate(2 * MIB).address == first.address
    allocator.free(second)
    assert allocator.allocate(90 * MIB).size == 90 * MIB


def test_too_small_gap_is_skipped(allocator: AllocatorModel) -> None:
    allocator.configure(expandable_segments=True)
    blocks = [allocator.allocate(size * MIB) for size in (20, 40, 20)]  # whole pages
    allocator.free(blocks[1])
    allocator.empty_cache()
    assert allocator.now("reserved_bytes") == 40 * MIB
    assert allocator.allocate(50 * MIB).address == blocks[2].address + 20 * MIB
    assert allocator.allocate(40 * MIB).address == blocks[1].address


def test_mapped_pieces_around_a_gap_merge_again(allocator: AllocatorModel) -> None:
    allocator.configure(expandable_segments=True)
    blocks = [allocator.allocate(size * MIB) for size in (10, 60, 10)]
    allocator.free(blocks[1])
    allocator.empty_cache()  # leaves 10..20 and 60..70 free
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    assert [(p.size // MIB, p.allocated) for p in allocator.parts()] == [(20, False), (20, False)]
    assert allocator.allocate(80 * MIB).address == blocks[0].address
    assert allocator.now("reserved_bytes") == 80 * MIB


def test_free_block_that_can_grow_is_taken_last(allocator: AllocatorModel) -> None:
    allocator.configure(expandable_segments=True)
    hole, _ = allocator.allocate(25 * MIB), allocator.allocate(2 * MIB)
    allocator.free(hole)
    # 25 MiB at the front and 13 MiB at the end are free. Only the latter can grow and so counts
    # as larger: 10 MiB go to the front.
    assert allocator.allocate(10 * MIB).address == hole.address


def test_expandable_blocks_are_skipped_after_the_option_is_turned_off(
    allocator: AllocatorModel,
) -> None:
    allocator.configure(expandable_segments=True)
    first, _, last = (
        allocator.allocate(12 * MIB),
        allocator.allocate(2 * MIB),
        allocator.allocate(26 * MIB),
    )
    allocator.free(first)
    allocator.free(last)
    allocator.configure(expandable_segments=False)
    plain = allocator.allocate(30 * MIB)
    allocator.free(plain)
    assert allocator.allocate(12 * MIB).address == plain.address
