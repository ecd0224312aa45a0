"""The division of blocks over devices, compared with trying every division."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from anyrig.errors import SpreadError
from anyrig.parallel.pipeline.costs import (
    BlockCost,
    InFlight,
    StageDevice,
    StageLink,
    all_forwards_first,
    one_forward_one_backward,
)
from anyrig.parallel.pipeline.partition import Partition, partition

MB = 2**20


def try_everything(
    blocks: list[BlockCost],
    devices: list[StageDevice],
    links: list[list[StageLink]],
    in_flight: InFlight,
    reorder: bool,
) -> float:
    """Return the best period over all orders and subsets of devices and all cuts; inf if none."""
    best = math.inf
    for count in range(1, min(len(devices), len(blocks)) + 1):
        orders = (itertools.permutations if reorder else itertools.combinations)(
            range(len(devices)), count
        )
        inside = itertools.combinations(range(1, len(blocks)), count - 1)
        cuts = [(0, *inner, len(blocks)) for inner in inside]
        for order in orders:
            tables = []
            for place, index in enumerate(order):
                tables.append({})
                held = in_flight(place, count)
                for start, end in itertools.combinations(range(len(blocks) + 1), 2):
                    time_, size = 0.0, 0
                    for b in range(start, end):
                        measured = devices[index].block_seconds
                        time_ += (
                            (blocks[b].forward_seconds + blocks[b].backward_seconds)
                            / devices[index].speed
                            if measured is None
                            else measured[b]
                        )
                        size += (
                            blocks[b].parameter_bytes
                            + blocks[b].training_bytes
                            + held * blocks[b].activation_bytes
                        )
                    limit = devices[index].memory_bytes
                    if place and blocks[start - 1].output_bytes:
                        link = links[order[place - 1]][index]
                        sent = blocks[start - 1].output_bytes / link.bytes_per_second
                        time_ = max(time_, link.latency_seconds + sent)
                    fits = limit is None or size <= limit
                    tables[-1][start, end] = time_ if fits else math.inf
            for bounds in cuts:
                worst = 0.0
                for place, pair in enumerate(itertools.pairwise(bounds)):
                    worst = max(worst, tables[place][pair])
                    if worst >= best:
                        break
                best = min(best, worst)
    return best


def random_instance(
    seed: int,
) -> tuple[list[BlockCost], list[StageDevice], list[list[StageLink]], InFlight, bool]:
    chance = random.Random(seed)
    count = chance.randint(1, 12)
    number = chance.choice([1, 2, 3, 3, 4, 4, 5])
    if number == 5:
        count = min(count, 9)
    blocks = [
        BlockCost(
            chance.uniform(0.1, 2),
            chance.uniform(0.1, 4),
            chance.randint(0, 50),
            chance.randint(0, 150),
            chance.randint(0, 30),
            chance.choice([0, chance.randint(1, 30)]),
        )
        for _ in range(count)
    ]
    total = sum(b.fixed_bytes + 2 * b.activation_bytes for b in blocks)
    devices = [
        StageDevice(
            f"cuda:{i}",
            chance.choice([1.0, chance.uniform(0.3, 3)]),
            chance.choice([None, int(total * chance.uniform(0.2, 1.2))]),
            [chance.uniform(0.1, 6) for _ in blocks] if chance.random() < 0.2 else None,
        )
        for i in range(number)
    ]
    same = StageLink(chance.uniform(5, 50), chance.uniform(0, 0.5))
    links = [
        [
            same if seed % 3 == 0 else StageLink(chance.uniform(1, 50), chance.uniform(0, 1))
            for _ in devices
        ]
        for _ in devices
    ]
    micro_batches = chance.randint(1, 6)
    in_flight = chance.choice(
        [
            one_forward_one_backward(micro_batches),
            all_forwards_first(micro_batches),
            lambda stage, stages: 1 + stage + stages % 2,
        ]
    )
    return blocks, devices, links, in_flight, chance.random() < 0.8


def require_possible(
    found: Partition,
    blocks: list[BlockCost],
    devices: list[StageDevice],
    links: list[list[StageLink]],
    in_flight: InFlight,
) -> None:
    """Require that the division covers all blocks, fits, and takes the stated time."""
    assert [start for start, _ in found.ranges] == [0, *(end for _, end in found.ranges[:-1])]
    assert found.ranges[-1][1] == len(blocks)
    assert len(set(found.devices)) == len(found.devices) == len(found.ranges)
    slowest = 0.0
    for i, (device, (start, end)) in enumerate(zip(found.devices, found.ranges, strict=True)):
        assert start < end
        part, place = blocks[start:end], devices[device]
        held = in_flight(i, len(found.ranges))
        size = sum(b.fixed_bytes + held * b.activation_bytes for b in part)
        assert place.memory_bytes is None or size <= place.memory_bytes
        measured = place.block_seconds
        slowest = max(
            slowest,
            sum(b.seconds for b in part) / place.speed
            if measured is None
            else sum(measured[start:end]),
        )
        if i and blocks[start - 1].output_bytes:
            link = links[found.devices[i - 1]][device]
            size = blocks[start - 1].output_bytes
            slowest = max(slowest, link.latency_seconds + size / link.bytes_per_second)
    assert found.slowest_seconds == pytest.approx(slowest, rel=1e-9)
    assert found.lower_seconds <= found.slowest_seconds


def check_instance(seed: int) -> bool:
    """Compare with trying every division; return whether one exists."""
    blocks, devices, links, in_flight, reorder = random_instance(seed)
    best = try_everything(blocks, devices, links, in_flight, reorder)
    if best == math.inf:
        with pytest.raises(SpreadError, match="missing"):
            partition(blocks, devices, links, in_flight, reorder=reorder)
        return False
    found = partition(blocks, devices, links, in_flight, reorder=reorder)
    assert found.slowest_seconds == pytest.approx(best, rel=1e-9), seed
    require_possible(found, blocks, devices, links, in_flight)
    if not reorder:
        assert list(found.devices) == sorted(found.devices)
    return True


def test_small_instances_are_divided_as_well_as_possible() -> None:
    assert sum(map(check_instance, range(100))) > 60


@pytest.mark.sweep
def test_more_small_instances_are_divided_as_well_as_possible() -> None:
    assert sum(map(check_instance, range(100, 600))) > 300


@pytest.mark.parametrize("reorder", [True, False])
@pytest.mark.parametrize("in_flight", [one_forward_one_backward(64), all_forwards_first(8)])
def test_a_thousand_blocks_come_close_to_the_lower_bound(
    reorder: bool, in_flight: InFlight
) -> None:
    chance = random.Random(5)
    blocks = [
        BlockCost(
            chance.uniform(0.5, 2),
            chance.uniform(1, 4),
            chance.randint(50, 150) * MB,
            chance.randint(150, 450) * MB,
            chance.randint(1, 10) * MB,
            chance.randint(1, 8) * MB,
        )
        for _ in range(1000)
    ]
    devices = [
        StageDevice(f"cuda:{i}", chance.uniform(0.5, 3), chance.randint(12, 80) * 1024 * MB)
        for i in range(64)
    ]
    link = StageLink(20 * 2**30, 1e-5)
    found = partition(blocks, devices, link, in_flight, reorder=reorder)
    require_possible(found, blocks, devices, [[link] * 64] * 64, in_flight)
    assert found.slowest_seconds <= 1.03 * found.lower_seconds
    # The printed bound is at least the time of all devices if blocks could be cut anywhere.
    everything = sum(b.seconds for b in blocks) / sum(d.speed for d in devices)
    assert found.lower_seconds >= everything * (1 - 1e-9)


def test_devices_that_only_slow_down_stay_unused() -> None:
    blocks = [BlockCost(1.0, output_bytes=100)] * 4
    devices = [StageDevice("fast", 10.0), StageDevice("slow", 0.1), StageDevice("fast too", 10.0)]
    found = partition(blocks, devices, StageLink(10_000), one_forward_one_backward(8))
    assert found.devices in ((0, 2), (2, 0))
    assert found.slowest_seconds == pytest.approx(0.2)
    assert "2 stages, 1 of 3 devices are unused" in found.reason
    alone = partition(blocks, devices, StageLink(10.0), one_forward_one_backward(8))
    assert len(alone.devices) == 1  # a transfer takes 10 s


def test_unequal_links_keep_the_order_of_devices() -> None:
    blocks = [BlockCost(1.0, output_bytes=1)] * 2
    fast, slow = StageLink(1e9), StageLink(1.0, 0.5)
    devices = [StageDevice("a"), StageDevice("b")]
    links = [[fast, slow], [fast, fast]]
    kept = partition(blocks, devices, links, all_forwards_first(1))
    assert (kept.devices, kept.slowest_seconds) == ((0, 1), 1.5)
    free = partition(blocks, devices, links, all_forwards_first(1), reorder=True)
    assert (free.devices, free.slowest_seconds) == ((1, 0), 1.0)


def test_a_block_without_room_is_named() -> None:
    blocks = [BlockCost(1.0, parameter_bytes=MB), BlockCost(1.0, parameter_bytes=5 * MB)]
    devices = [StageDevice("cuda:0", memory_bytes=2 * MB), StageDevice("cuda:1", memory_bytes=MB)]
    with pytest.raises(SpreadError, match=r"block 1 needs 5.*cuda:0.*3.* are missing") as caught:
        partition(blocks, devices, StageLink(), all_forwards_first(1))
    assert "recompute activations" in str(caught.value)


@pytest.mark.parametrize("reorder", [True, False])
def test_missing_bytes_and_the_number_of_devices_are_named(reorder: bool) -> None:
    blocks = [BlockCost(1.0, parameter_bytes=2 * MB)] * 9
    devices = [StageDevice("cuda:0", 1.0, 5 * MB), StageDevice("cuda:1", 2.0, 3 * MB)]
    with pytest.raises(
        SpreadError, match=r"12.00 MiB are missing; 5 devices like cuda:0"
    ) as caught:
        partition(blocks, devices, StageLink(), all_forwards_first(1), reorder=reorder)
    assert "18.00 MiB" in str(caught.value)
    enough = [StageDevice(str(i), 1.0, 5 * MB) for i in range(5)]
    assert len(partition(blocks, enough, StageLink(), all_forwards_first(1)).devices) == 5
    with pytest.raises(SpreadError):
        partition(blocks, enough[:4], StageLink(), all_forwards_first(1))


def test_the_number_of_devices_depends_on_what_earlier_stages_hold() -> None:
    held = one_forward_one_backward(8)
    early = [BlockCost(1.0, 0.0, MB, activation_bytes=size * MB) for size in (3, 1, 1, 1, 1, 1)]
    alone = [StageDevice("cuda:0", memory_bytes=6 * MB)]
    with pytest.raises(SpreadError, match="no number of devices like cuda:0 would do"):
        partition(early, alone, StageLink(), held)
    with pytest.raises(SpreadError, match="4 devices like cuda:0"):
        partition(early[::-1], alone, StageLink(), held)
    assert len(partition(early[::-1], alone * 4, StageLink(), held).devices) == 4
    with pytest.raises(SpreadError):
        partition(early[::-1], alone * 3, StageLink(), held)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="0 blocks, 1 devices"):
        partition([], [StageDevice("a")], StageLink(), all_forwards_first(1))
    with pytest.raises(ValueError, match=r"speed of device .* is 0"):
        partition([BlockCost(1.0)], [StageDevice("a", 0)], StageLink(), all_forwards_first(1))
    device = StageDevice("a", block_seconds=[1.0, 2.0])
    with pytest.raises(ValueError, match="seconds of 2 blocks"):
        partition([BlockCost(1.0)], [device], StageLink(), all_forwards_first(1))
