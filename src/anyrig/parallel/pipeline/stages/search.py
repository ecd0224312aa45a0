"""A good division for many devices: stages are filled from the end, for a limit that is bisected.

::

    limit T          ◀── device 5 ──│◀─ 1 ─│◀──── 7 ────│◀── 2 ──│ end
                     each stage takes as many blocks as T and its memory allow

The end is the place to begin, because the number of stages after a stage decides how many
micro-batches it holds. If the order is free, the next device is the one that leaves the least of
its time unused, compared with what it would leave later, when a stage holds more micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from .exact import Stages
from .problem import Problem

_PRECISION = 1e-4


def search(problem: Problem, lower_seconds: float) -> tuple[float, Stages, float] | None:
    """Return the slowest stage's or transfer's seconds, the stages, and a better lower bound.

    Return None if no division is found.

    Args:
        problem: a problem with many devices or blocks.
        lower_seconds: a lower bound: no division is faster.
    """
    held = problem.held_by_stages_after
    if held is None:
        most = len(problem.devices)
        held = [problem.in_flight(most - 1 - after, most) for after in range(most)]
    fill = _fill_given_order if problem.given_order else _fill_free_order
    best: tuple[float, Stages, float] | None = None
    for patience in (0.0, 0.5, 1.0) if not problem.given_order else (0.0,):
        ceiling = best[0] if best else float("inf")
        attempt = partial(fill, problem, held, patience)
        found = _bisect(problem, lower_seconds, ceiling, attempt)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
        if best is not None and best[0] <= lower_seconds * (1 + _PRECISION):
            break
    if best is None:
        return None
    complete = (
        problem.given_order
        and problem.held_by_stages_after is not None
        and held == sorted(held)
        and problem.slowest_transfer <= lower_seconds
    )
    return best[0], best[1], max(lower_seconds, best[2] if complete else 0.0)


def measure_stages(problem: Problem, stages: Stages) -> float | None:
    """Return the slowest stage's or transfer's seconds; None if a stage does not fit."""
    slowest = 0.0
    for index, (device, start, end) in enumerate(stages):
        held = problem.in_flight(index, len(stages))
        if problem.stage_bytes(start, end, held) > problem.memory[device]:
            return None
        slowest = max(slowest, problem.compute_seconds(device, start, end))
        if index:
            slowest = max(slowest, problem.transfer_seconds(stages[index - 1][0], device, start))
    return slowest


def _bisect(
    problem: Problem, low: float, ceiling: float, fill: Callable[[float], Stages | None]
) -> tuple[float, Stages, float] | None:
    """Return the best stages, and the largest limit for which there were none."""
    best: tuple[float, Stages] | None = None

    def attempt(limit: float) -> bool:
        nonlocal best
        stages = fill(limit)
        seconds = None if stages is None else measure_stages(problem, stages)
        if stages is None or seconds is None or seconds > limit * (1 + 1e-9):
            return False
        if best is None or seconds < best[0]:
            best = seconds, stages
        return True

    high = low if low > 0 else 1e-9
    growth = 1.01
    while not attempt(high):
        if high > ceiling or growth > 1e12:
            return None
        low, high, growth = high, high * growth, growth * growth
    assert best is not None
    high = min(high, best[0])
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if attempt(middle):
            high = min(middle, best[0])
        else:
            low = middle
    return *best, low


def _fill_free_order(
    problem: Problem, held: Sequence[int], patience: float, limit: float
) -> Stages | None:
    count = len(problem.blocks)
    left, stages, end = set(range(len(problem.devices))), Stages(), count
    rates = [problem.seconds[d][count] or 1.0 for d in range(len(problem.devices))]
    while end and left:
        micro_batches = held[len(stages)]
        later = held[min(len(stages) + len(left) // 2, len(held) - 1)]
        chosen: tuple[float, int, int] | None = None
        for device in left:
            if stages and problem.transfer_seconds(device, stages[-1][0], end) > limit:
                continue
            start = problem.earliest_start(device, end, micro_batches, limit)
            if start == end:
                continue
            unused = (limit - problem.compute_seconds(device, start, end)) / rates[device]
            if patience and start:
                other = problem.earliest_start(device, end, later, limit)
                late = (limit - problem.compute_seconds(device, other, end)) / rates[device]
                unused -= patience * late
            if start == 0:
                unused = -float("inf")
            if chosen is None or (unused, device) < (chosen[0], chosen[1]):
                chosen = unused, device, start
        if chosen is None:
            return None
        _, device, start = chosen
        left.remove(device)
        start = _sendable(problem, device, start, end, limit, left)
        if start == end:
            return None
        stages.append((device, start, end))
        end = start
    return stages[::-1] if end == 0 else None


def _sendable(
    problem: Problem, device: int, start: int, end: int, limit: float, left: set[int]
) -> int:
    """Return the first block from `start` on to which a remaining device can send in time."""
    if problem.slowest_transfer <= limit or start == 0:
        return start
    while start < end:
        if any(problem.transfer_seconds(other, device, start) <= limit for other in left):
            return start
        start += 1
    return end


def _fill_given_order(
    problem: Problem, held: Sequence[int], patience: float, limit: float
) -> Stages | None:
    """Return stages in the devices' order; without slow transfers, None means there are none."""
    count, most = len(problem.blocks), len(problem.devices)
    # By number of stages: the first block, and the stages as nested pairs.
    reached: list[tuple[int, tuple[object, ...] | None, int]] = [(count, None, -1)]
    for device in range(most - 1, -1, -1):
        for stages in range(len(reached) - 1, -1, -1):
            end, chain, after = reached[stages]
            if end == 0:
                continue
            if after >= 0 and problem.transfer_seconds(device, after, end) > limit:
                continue
            start = problem.earliest_start(device, end, held[stages], limit)
            start = _sendable(problem, device, start, end, limit, set(range(device)))
            if start == end:
                continue
            entry = (start, ((device, start, end), chain), device)
            if stages + 1 == len(reached):
                reached.append(entry)
            elif start < reached[stages + 1][0]:
                reached[stages + 1] = entry
    for end, chain, _ in reached:
        if end == 0:
            found = Stages()
            link: tuple[object, ...] | None = chain
            while link is not None:
                found.append(link[0])  # type: ignore[arg-type]
                link = link[1]  # type: ignore[assignment]
            return found
    return None
