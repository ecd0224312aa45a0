"""The division of blocks over devices, against trying everything."""

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
        cuts = [
            (0, *inner, len(blocks))
            for inner in itertools.combinations(range(1, len(blocks)), count - 1)
        ]
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
    """Require that the division covers all blocks, fits, and takes what it says."""
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
    """Compare with trying everything; return whether a division exists."""
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
