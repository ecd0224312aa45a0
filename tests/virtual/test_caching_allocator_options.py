"""The settings of PYTORCH_ALLOC_CONF in the allocator model, traces worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from virtual_card import GIB, KIB, MIB, OutOfMemoryError, VirtualCard

# ---- roundup_power2_divisions


@pytest.mark.parametrize(
    ("request_size", "block_size"),
    [
        # 4 steps between 1024 and 2048 are 256 apart, but 1200 <= 4 * 512 is rounded by 512.
        (1200, 1536),
        # 2049 lies in 2048..4096, steps of 512.
        (2049, 2560),
        # 1.1 MiB lies in 1..2 MiB, steps of 256 KiB: 1.25 MiB.
        (int(1.1 * MIB), 1 * MIB + 256 * KIB),
        # A power of 2 stays.
        (4 * MIB, 4 * MIB),
        # 8..16 MiB has 8 steps, of 1 MiB each: 9.5 becomes 10.
        (9 * MIB + 512 * KIB, 10 * MIB),
        # From 32 GiB on the last interval counts; here it has 1 division: none.
        (33 * GIB + 1, 33 * GIB + 512),
    ],
)
def test_roundup_power2_divisions(
    card_of: Callable[[int], VirtualCard], request_size: int, block_size: int
) -> None:
    card = card_of(80 * GIB)
    # [<2 MiB: 4, 2..8 MiB: 4, 8..16 MiB: 8, ..., >=32 GiB: 1]
    card.configure(roundup_power2_divisions=(4, 4, 4, 8) + (4,) * 11 + (1,))
    assert card.allocate(request_size).size == block_size


# ---- max_split_size_mb


def test_oversize_block_is_neither_split_nor_used_for_small_requests(card: VirtualCard) -> None:
    card.configure(max_split=40 * MIB)
    block = card.allocate(50 * MIB)
    stats = card.stats()
    assert stats["oversize_allocations.current"] == stats["oversize_segments.current"] == 1
    card.free(block)
    assert card.stats()["oversize_allocations.current"] == 0
    # 30 MiB is below the bound: an oversize block is not for it.
    assert card.allocate(30 * MIB).address != block.address
    # 45 MiB is oversize itself; 50 < 45 + 20, so it takes the block, whole.
    again = card.allocate(45 * MIB)
    assert (again.address, again.size) == (block.address, 50 * MIB)


def test_oversize_block_serves_only_requests_near_its_size(card: VirtualCard) -> None:
    card.configure(max_split=40 * MIB, max_non_split_rounding=20 * MIB)
    block = card.allocate(60 * MIB)
    card.free(block)
    assert card.allocate(40 * MIB).address != block.address  # 60 >= 40 + 20
    assert card.allocate(42 * MIB).address == block.address


def test_one_large_enough_oversize_block_is_released_first(
    card_of: Callable[[int], VirtualCard],
) -> None:
    card = card_of(200 * MIB)
    card.configure(max_split=40 * MIB)
    blocks = [card.allocate(size * MIB) for size in (90, 50, 20)]
    for block in blocks:
        card.free(block)
    # 160 reserved, 40 free. 60 MiB: the 90 MiB block is too far from it to be used (90 >= 80),
    # but is released; the others stay and the cache is not emptied.
    card.allocate(60 * MIB)
    assert card.now("reserved_bytes") == (60 + 50 + 20) * MIB
    stats = card.stats()
    assert (stats["num_alloc_retries"], stats["num_sync_all_streams"]) == (0, 0)
    assert stats["oversize_segments.current"] == 2


def test_several_oversize_blocks_are_released_largest_first(
    card_of: Callable[[int], VirtualCard],
) -> None:
    card = card_of(200 * MIB)
    card.configure(max_split=40 * MIB)
    blocks = [card.allocate(size * MIB) for size in (60, 50, 40, 20)]
    for block in blocks:
        card.free(block)
    # 170 reserved. 100 MiB needs 60 + 50; 40 and 20 stay.
    card.allocate(100 * MIB)
    assert card.now("reserved_bytes") == (100 + 40 + 20) * MIB
    assert card.stats()["num_alloc_retries"] == 0


def test_blocks_below_the_bound_are_not_released_for_an_oversize_request(
    card_of: Callable[[int], VirtualCard],
) -> None:
    card = card_of(200 * MIB)
    card.configure(max_split=40 * MIB)
    blocks = [card.allocate(size * MIB) for size in (60, 50, 40, 20)]
    for block in blocks:
        card.free(block)
    # 60 + 50 + 40 are less than 160; the 20 MiB block goes only with the whole cache.
    card.allocate(160 * MIB)
    assert card.now("reserved_bytes") == 160 * MIB
    assert card.stats()["num_alloc_retries"] == 1


# ---- garbage_collection_threshold


def card_with_old_and_young_segments(card: VirtualCard, *, threshold: float) -> None:
    """Leaves 60 MiB free for longer than 50 MiB, on stream 0, and 12 MiB in use on stream 1."""
    card.configure(garbage_collection_threshold=threshold)
    card.set_memory_fraction(400 * MIB / GIB)
    old, young = card.allocate(60 * MIB), card.allocate(50 * MIB)  # searches 1 and 2
    other = card.allocate(12 * MIB, stream=1)  # search 3
    card.free(old)
    for _ in range(2):  # searches 4 and 5: time passes in searches of the pool
        card.free(other)
        other = card.allocate(12 * MIB, stream=1)
    card.free(young)


def test_garbage_collection_releases_the_older_half(card: VirtualCard) -> None:
    card_with_old_and_young_segments(card, threshold=0.5)
    card.allocate(100 * MIB)  # search 6: 122 of the 200 MiB above which it sets in
    assert card.stats()["num_device_free"] == 0
    # Search 7: 222 - 200 = 22 MiB to gain. Ages 7 - 3 = 4 and 7 - 5 = 2, the average is 3.
    card.allocate(70 * MIB)
    assert card.now("reserved_bytes") == (50 + 12 + 100 + 70) * MIB
    stats = card.stats()
    assert (stats["num_device_free"], stats["num_sync_all_streams"]) == (1, 0)


def test_garbage_collection_goes_on_until_enough_is_gained(card: VirtualCard) -> None:
    card_with_old_and_young_segments(card, threshold=0.15)
    # 122 - 60 = 62 MiB to gain: the older 60 are too little, so that the others go as well.
    card.allocate(70 * MIB)
    assert card.now("reserved_bytes") == (12 + 70) * MIB
    assert card.stats()["num_device_free"] == 2


def test_garbage_collection_leaves_split_segments_alone(card: VirtualCard) -> None:
    card.configure(garbage_collection_threshold=0.01)
    card.set_memory_fraction(0.5)
    half, _ = card.allocate(30 * MIB), card.allocate(15 * MIB)
    whole, other = card.allocate(12 * MIB), card.allocate(12 * MIB, stream=1)
    card.free(half)
    card.allocate(4 * MIB)  # splits the 30 MiB block
    for _ in range(3):
        card.free(other)
        other = card.allocate(12 * MIB, stream=1)
    card.free(whole)
    # The rest of the split block is the oldest; were it counted, the average age would save the
    # 12 MiB block. It does not count, so that the 12 MiB block is the only candidate and goes.
    card.allocate(70 * MIB)
    assert card.now("reserved_bytes") == (30 + 16 + 12 + 70) * MIB


def test_garbage_collection_needs_threshold_and_fraction(card: VirtualCard) -> None:
    card.configure(garbage_collection_threshold=0.01)
    card.free(card.allocate(60 * MIB))
    card.allocate(70 * MIB)
    assert card.now("reserved_bytes") == 130 * MIB


# ---- expandable_segments


def test_expandable_segment_grows_by_pages(card: VirtualCard) -> None:
    card.configure(expandable_segments=True)
    first = card.allocate(3 * MIB)  # one page of 20 MiB
    assert card.now("reserved_bytes") == 20 * MIB
    second = card.allocate(30 * MIB)  # 17 MiB are free, one more page is mapped
    assert second.address == first.address + first.size
    assert card.now("reserved_bytes") == 40 * MIB
    stats = card.stats()
    assert stats["num_device_alloc"] == 2
    assert stats["segment.all.current"] == 0  # expandable segments are not counted
    assert stats["inactive_split.all.peak"] == 0


def test_expandable_segment_of_the_small_pool_has_pages_of_2_mib(card: VirtualCard) -> None:
    card.configure(expandable_segments=True)
    card.allocate(512)
    assert card.now("reserved_bytes") == 2 * MIB


def test_expandable_blocks_are_split_to_512_bytes_in_the_large_pool(card: VirtualCard) -> None:
    card.configure(expandable_segments=True)
    block = card.allocate(3 * MIB)
    card.allocate(2 * MIB)
    card.free(block)
    # A rest of 1 MiB would count as allocated without expandable segments.
    assert card.allocate(2 * MIB).size == 2 * MIB


def test_emptying_unmaps_whole_pages_in_the_middle(card: VirtualCard) -> None:
    card.configure(expandable_segments=True)
    blocks = [card.allocate(size * MIB) for size in (10, 60, 10)]  # 80 MiB, four pages
    card.free(blocks[1])
    card.empty_cache()
    # Free are 10..70; the whole pages in there are 20..40 and 40..60.
    assert card.now("reserved_bytes") == 40 * MIB
    assert card.now("allocated_bytes") == 20 * MIB
    # 60 MiB fit there again, at the lowest address, with two pages mapped anew.
    assert card.allocate(60 * MIB).address == blocks[1].address
    assert card.now("reserved_bytes") == 80 * MIB


def test_expandable_segment_disappears_with_its_last_page(card: VirtualCard) -> None:
    card.configure(expandable_segments=True)
    first = card.allocate(30 * MIB)
    card.free(first)
    card.empty_cache()
    assert card.now("reserved_bytes") == 0
    assert card.parts() == []
    second = card.allocate(30 * MIB)
    # 9/8 of 1 GiB, in pages of 20 MiB, lie between the two.
    assert second.address - first.address == -(-9 * GIB // 8 // (20 * MIB)) * 20 * MIB


def test_full_card_with_expandable_segments(card_of: Callable[[int], VirtualCard]) -> None:
    card = card_of(100 * MIB)
    card.configure(expandable_segments=True)
    first, second = card.allocate(50 * MIB), card.allocate(50 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"Tried to allocate 20\.00 MiB"):
        card.allocate(2 * MIB)
    card.free(first)
    assert card.allocate(2 * MIB).address == first.address
    card.free(second)
    assert card.allocate(90 * MIB).size == 90 * MIB


def test_gap_that_is_too_small_is_passed_over(card: VirtualCard) -> None:
    card.configure(expandable_segments=True)
    blocks = [card.allocate(size * MIB) for size in (20, 40, 20)]  # whole pages
    card.free(blocks[1])
    card.empty_cache()
    assert card.now("reserved_bytes") == 40 * MIB
    assert card.allocate(50 * MIB).address == blocks[2].address + 20 * MIB
    assert card.allocate(40 * MIB).address == blocks[1].address


def test_pieces_left_mapped_around_a_gap_merge_again(card: VirtualCard) -> None:
    card.configure(expandable_segments=True)
    blocks = [card.allocate(size * MIB) for size in (10, 60, 10)]
    card.free(blocks[1])
    card.empty_cache()  # leaves 10..20 and 60..70 free
    card.free(blocks[0])
    card.free(blocks[2])
    assert [(p.size // MIB, p.allocated) for p in card.parts()] == [(20, False), (20, False)]
    assert card.allocate(80 * MIB).address == blocks[0].address
    assert card.now("reserved_bytes") == 80 * MIB


def test_free_block_that_can_grow_is_taken_last(card: VirtualCard) -> None:
    card.configure(expandable_segments=True)
    hole, _ = card.allocate(25 * MIB), card.allocate(2 * MIB)
    card.free(hole)
    # Free are 25 MiB at the front and 13 MiB at the end. Only the latter can grow, so that it
    # counts as larger and 10 MiB go to the front.
    assert card.allocate(10 * MIB).address == hole.address


def test_expandable_blocks_are_passed_over_after_the_option_is_turned_off(
    card: VirtualCard,
) -> None:
    card.configure(expandable_segments=True)
    first, _, last = card.allocate(12 * MIB), card.allocate(2 * MIB), card.allocate(26 * MIB)
    card.free(first)
    card.free(last)
    card.configure(expandable_segments=False)
    plain = card.allocate(30 * MIB)
    card.free(plain)
    assert card.allocate(12 * MIB).address == plain.address
