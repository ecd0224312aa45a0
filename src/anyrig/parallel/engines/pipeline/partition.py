"""Which device computes which blocks, such that the slowest stage is as fast as possible.

Model of time: in the steady state of a pipeline, each stage computes one micro-batch forward and
backward per period, while the values and gradients of other micro-batches are on their way. Copies
run concurrently with computation, and so do the two directions of a link. So the period is the
largest of

- a stage's compute seconds: forward and backward of its blocks on its device,
- a cut's transfer seconds: latency, and the cut's bytes over the link's rate.

Filling and draining the pipeline, and links that several pairs of devices share, are left out.

The least period is bisected. Whether one is possible is found by filling stages from the end::

    limit T       ◀── device 0 ──│◀─ 2 ─│◀──── 3 ────│ end
                  each stage takes as many blocks as T and its memory allow

The number of stages after a stage decides how many micro-batches it holds, so for each number of
stages the one is kept that has the most blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....units import format_count
from .costs import BlockCost, InFlight, StageDevice, StageLink
from .no_room import explain_no_room
from .partition_problem import Problem

_PRECISION = 1e-12

_Stages = tuple[tuple[int, int, int], ...]  # (device, first block, end) in order


@dataclass(frozen=True)
class Partition:
    """Blocks divided over devices.

    Attributes:
        devices: the indices of the devices of the stages, in order; others are unused.
        ranges: (first block, end) of each stage.
        slowest_seconds: the time of the slowest stage or transfer, per micro-batch.
        reason: the choice in words.
    """

    devices: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    slowest_seconds: float
    reason: str


def partition(
    blocks: Sequence[BlockCost],
    devices: Sequence[StageDevice],
    link: StageLink,
    in_flight: InFlight,
) -> Partition:
    """Return the division that fits the devices' memory and whose slowest stage is fastest.

    Args:
        blocks: in order, at least one.
        devices: at least one, in the order of their stages; some may stay unused.
        link: between any two devices.
        in_flight: for how many micro-batches a stage holds activations.

    Raises:
        SpreadError: no division fits; the message names the missing bytes and a remedy.
        ValueError: there are no blocks or devices, or a number is out of range.
    """
    _require_possible(blocks, devices)
    problem = Problem(blocks, devices, link, in_flight)
    stages = _fill(problem, math.inf)
    if stages is None:
        raise explain_no_room(problem)
    low, high = 0.0, _slowest(problem, stages)
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        found = _fill(problem, middle)
        if found is None:
            low = middle
        else:
            stages, high = found, min(middle, _slowest(problem, found))
    return Partition(
        tuple(device for device, _, _ in stages),
        tuple((start, end) for _, start, end in stages),
        _slowest(problem, stages),
        _describe(problem, stages),
    )


def _fill(problem: Problem, limit: float) -> _Stages | None:
    """Return stages that take at most `limit` seconds each; None if there are none."""
    # By number of stages: the first block that they reach from the end, and the stages.
    reached: list[tuple[int, _Stages]] = [(len(problem.blocks), ())]
    for device in reversed(range(len(problem.devices))):
        for later in reversed(range(len(reached))):
            end, stages = reached[later]
            start = problem.earliest_start(device, end, later, limit)
            if start == end:
                continue
            longer = start, ((device, start, end), *stages)
            if later + 1 == len(reached):
                reached.append(longer)
            elif start < reached[later + 1][0]:
                reached[later + 1] = longer
    return next((stages for start, stages in reached if start == 0), None)


def _slowest(problem: Problem, stages: _Stages) -> float:
    """Return the seconds of the slowest stage or transfer."""
    transfers = [problem.transfer_seconds[start] for _, start, _ in stages]
    return max(*transfers, *(problem.compute_seconds(*stage) for stage in stages))


def _require_possible(blocks: Sequence[BlockCost], devices: Sequence[StageDevice]) -> None:
    if not blocks or not devices:
        raise ValueError(f"{len(blocks)} blocks, {len(devices)} devices: give at least one of each")
    for device in devices:
        if device.block_seconds is not None and len(device.block_seconds) != len(blocks):
            raise ValueError(
                f"device {device.name} has the seconds of {len(device.block_seconds)} blocks; "
                f"there are {len(blocks)} blocks"
            )
        if not 0 < device.speed < math.inf:
            raise ValueError(
                f"the speed of device {device.name} is {device.speed}; it must be above 0"
            )
    for index, block in enumerate(blocks):
        if not 0 <= block.seconds < math.inf:
            raise ValueError(f"block {index} takes {block.seconds} s; give a finite time from 0 up")


def _describe(problem: Problem, stages: _Stages) -> str:
    seconds = _slowest(problem, stages)
    times = [problem.compute_seconds(*stage) for stage in stages]
    slowest = max(range(len(stages)), key=times.__getitem__)
    device, start, end = stages[slowest]
    what = "the slowest transfer between stages"
    if times[slowest] >= seconds * (1 - 1e-9):
        what = f"the slowest stage, blocks {start} to {end - 1} on {problem.devices[device].name},"
    unused = len(problem.devices) - len(stages)
    others = f", {unused} of {len(problem.devices)} devices are unused" if unused else ""
    shown = f"{seconds * 1e3:.4g} ms per micro-batch"
    return (
        f"{format_count(len(stages), 'stage')}{others}: {what} takes {shown}; no division is faster"
    )
