"""The division of blocks over devices, compared with trying every division."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.costs import (
    BlockCost,
    InFlight,
    StageDevice,
    StageLink,
    all_forwards_first,
    one_forward_one_backward,
)
from anyrig.parallel.engines.pipeline.partition import Partition, partition

MB = 2**20


def stage_seconds(
    blocks: list[BlockCost], device: StageDevice, link: StageLink, start: int, end: int, held: int
) -> float:
    """Return the time of a stage or of the transfer to it; inf if the stage does not fit."""
    part = blocks[start:end]
    size = sum(b.fixed_bytes + held * b.activation_bytes for b in part)
    if device.memory_bytes is not None and size > device.memory_bytes:
        return math.inf
    measured = device.block_seconds
    seconds = sum(b.seconds for b in part) / device.speed
    if measured is not None:
        seconds = sum(measured[start:end])
    sent = blocks[start - 1].output_bytes if start else 0
    return max(seconds, link.latency_seconds + sent / link.bytes_per_second if sent else 0.0)


def try_everything(
    blocks: list[BlockCost], devices: list[StageDevice], link: StageLink, in_flight: InFlight
) -> float:
    """Return the shortest period of all possible divisions; inf if no division fits."""
    best = math.inf
    for count in range(1, min(len(devices), len(blocks)) + 1):
        for inner in itertools.combinations(range(1, len(blocks)), count - 1):
            pairs = [*itertools.pairwise((0, *inner, len(blocks)))]
            for chosen in itertools.combinations(devices, count):
                best = min(
                    best,
                    max(
                        stage_seconds(blocks, device, link, *pair, in_flight(count - 1 - place))
                        for place, (device, pair) in enumerate(zip(chosen, pairs, strict=True))
                    ),
                )
    return best


def random_instance(
    seed: int,
) -> tuple[list[BlockCost], list[StageDevice], StageLink, InFlight]:
    chance = random.Random(seed)
    number = chance.choice([1, 2, 3, 3, 4, 4, 5])
    count = chance.randint(1, 9)
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
    link = StageLink(chance.uniform(5, 50), chance.uniform(0, 0.5))
    held = chance.choice([one_forward_one_backward, all_forwards_first])(chance.randint(1, 6))
    return blocks, devices, link, held


def require_possible(
    found: Partition,
    blocks: list[BlockCost],
    devices: list[StageDevice],
    link: StageLink,
    in_flight: InFlight,
) -> None:
    """Require that the division covers all blocks, fits, and takes the stated time."""
    assert [start for start, _ in found.ranges] == [0, *(end for _, end in found.ranges[:-1])]
    assert found.ranges[-1][1] == len(blocks)
    assert list(found.devices) == sorted({*found.devices})
    times = [
        stage_seconds(blocks, devices[device], link, *pair, in_flight(len(found.ranges) - 1 - i))
        for i, (device, pair) in enumerate(zip(found.devices, found.ranges, strict=True))
    ]
    assert found.slowest_seconds == pytest.approx(max(times), rel=1e-9)


def check_instance(seed: int) -> bool:
    """Compare with trying every division; return whether one exists."""
    instance = random_instance(seed)
    best = try_everything(*instance)
    if best == math.inf:
        with pytest.raises(SpreadError, match="missing"):
            partition(*instance)
        return False
    found = partition(*instance)
    assert found.slowest_seconds == pytest.approx(best, rel=1e-9), seed
    require_possible(found, *instance)
    return True


def test_small_instances_are_divided_as_well_as_possible() -> None:
    assert sum(map(check_instance, range(100))) > 60


@pytest.mark.sweep
def test_more_small_instances_are_divided_as_well_as_possible() -> None:
    assert sum(map(check_instance, range(100, 600))) > 300


@pytest.mark.parametrize("in_flight", [one_forward_one_backward(64), all_forwards_first(8)])
def test_a_thousand_blocks_on_unequal_devices(in_flight: InFlight) -> None:
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
    found = partition(blocks, devices, link, in_flight)
    require_possible(found, blocks, devices, link, in_flight)
    # No more than a block a device above the time of all devices if blocks could be cut anywhere.
    everything = sum(b.seconds for b in blocks) / sum(d.speed for d in devices)
    assert everything <= found.slowest_seconds <= 1.25 * everything


def test_devices_that_only_slow_down_stay_unused() -> None:
    blocks = [BlockCost(1.0, output_bytes=100)] * 4
    devices = [StageDevice("fast", 10.0), StageDevice("slow", 0.1), StageDevice("fast too", 10.0)]
    found = partition(blocks, devices, StageLink(10_000), one_forward_one_backward(8))
    assert found.devices == (0, 2)
    assert found.slowest_seconds == pytest.approx(0.2)
    assert "2 stages, 1 of 3 devices are unused" in found.reason
    alone = partition(blocks, devices, StageLink(10.0), one_forward_one_backward(8))
    assert len(alone.devices) == 1  # a transfer takes 10 s


def test_a_block_without_room_is_named() -> None:
    blocks = [BlockCost(1.0, parameter_bytes=MB), BlockCost(1.0, parameter_bytes=5 * MB)]
    devices = [StageDevice("cuda:0", memory_bytes=2 * MB), StageDevice("cuda:1", memory_bytes=MB)]
    with pytest.raises(SpreadError, match=r"block 1 needs 5.*cuda:0.*3.* are missing") as caught:
        partition(blocks, devices, StageLink(), all_forwards_first(1))
    assert "recompute activations" in str(caught.value)


def test_missing_bytes_and_the_number_of_devices_are_named() -> None:
    blocks = [BlockCost(1.0, parameter_bytes=2 * MB)] * 9
    devices = [StageDevice("cuda:0", 1.0, 5 * MB), StageDevice("cuda:1", 2.0, 3 * MB)]
    with pytest.raises(
        SpreadError, match=r"12.00 MiB are missing; 5 devices like cuda:0"
    ) as caught:
        partition(blocks, devices, StageLink(), all_forwards_first(1))
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
