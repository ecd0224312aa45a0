"""Which device computes which blocks, such that the slowest stage is as fast as possible.

Model of time: in the steady state of a pipeline, each stage computes one micro-batch forward and
backward per period, while the values and gradients of other micro-batches are on their way. Copies
run concurrently with computation, and so do the two directions of a link. So the period is the
largest of

- a stage's compute seconds: forward and backward of its blocks on its device,
- a cut's transfer seconds: latency, and the cut's bytes over the link's rate.

Filling and draining the pipeline, and links that several pairs of devices share, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...units import format_count
from .costs import BlockCost, InFlight, StageDevice, StageLink
from .stages.exact import Stages, count_steps, find_best
from .stages.lower_bound import find_lower_bound
from .stages.no_room import explain_no_room
from .stages.problem import Links, Problem
from .stages.search import search

# About a second.
_EXACT_STEPS = 6_000_000


@dataclass(frozen=True)
class Partition:
    """Blocks divided over devices.

    Attributes:
        devices: the indices of the devices of the stages, in order; others are unused.
        ranges: (first block, end) of each stage.
        slowest_seconds: the time of the slowest stage or transfer, per micro-batch.
        lower_seconds: a lower bound: no division is faster.
        reason: the choice in words.
    """

    devices: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    slowest_seconds: float
    lower_seconds: float
    reason: str


def partition(
    blocks: Sequence[BlockCost],
    devices: Sequence[StageDevice],
    links: StageLink | Links,
    in_flight: InFlight,
    *,
    reorder: bool | None = None,
) -> Partition:
    """Return a division that fits the devices' memory and whose slowest stage is fast.

    For few devices and blocks it is the best division; for more, it is close to the lower bound.

    Args:
        blocks: in order, at least one.
        devices: at least one; some may stay unused.
        links: one for all pairs of devices, or ``links[a][b]`` from device a to device b.
        in_flight: for how many micro-batches stage i of n stages holds activations.
        reorder: whether the stages' devices may be in a different order from `devices`. None allows
            it if all links are equal.

    Raises:
        SpreadError: no division fits; the message names the missing bytes and a remedy.
        ValueError: there are no blocks or devices, or a number is out of range.
    """
    _require_possible(blocks, devices)
    count = len(devices)
    table = [[links] * count] * count if isinstance(links, StageLink) else links
    if reorder is None:
        pairs = {table[a][b] for a in range(count) for b in range(count) if a != b}
        reorder = len(pairs) < 2
    problem = Problem(blocks, devices, table, in_flight, not reorder)
    if len(problem.kinds) == 1:  # another order is the same division
        problem.given_order = True
    lower = find_lower_bound(problem)
    found = search(problem, lower)
    seconds, stages, lower = found or (math.inf, Stages(), lower)
    exact = count_steps(problem) <= _EXACT_STEPS
    if exact:
        seconds, stages = find_best(problem, seconds) or (seconds, stages)
        lower = seconds
    if not stages:
        raise explain_no_room(problem)
    lower = min(lower, seconds)
    return Partition(
        tuple(device for device, _, _ in stages),
        tuple((start, end) for _, start, end in stages),
        seconds,
        lower,
        _describe(problem, stages, seconds, lower, exact),
    )


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


def _describe(problem: Problem, stages: Stages, seconds: float, lower: float, exact: bool) -> str:
    times = [problem.compute_seconds(*stage) for stage in stages]
    slowest = max(range(len(stages)), key=times.__getitem__)
    device, start, end = stages[slowest]
    if times[slowest] >= seconds * (1 - 1e-9):
        what = f"the slowest stage, blocks {start} to {end - 1} on {problem.devices[device].name},"
    else:
        what = "the slowest transfer between stages"
    unused = len(problem.devices) - len(stages)
    others = f", {unused} of {len(problem.devices)} devices are unused" if unused else ""
    bound = (
        "no division is faster"
        if exact or seconds <= lower * (1 + 1e-9)
        else f"no division takes less than {lower * 1e3:.4g} ms, {seconds / lower - 1:.1%} less"
    )
    shown = f"{seconds * 1e3:.4g} ms per micro-batch"
    return f"{format_count(len(stages), 'stage')}{others}: {what} takes {shown}; {bound}"
