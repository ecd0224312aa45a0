"""The best division for few devices and blocks, found by trying every division once.

::

    best[devices used by the last stages, first of them, its first block]

A division of the last blocks over a set of devices is found once, whichever stages come before.
Earlier stages depend only on its first device, its first block and the number of its stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .problem import Problem

Stages = list[tuple[int, int, int]]  # (device, first block, end) in order
_State = tuple[int, int, int]  # (devices used, the first of them, its first block)
_Layer = dict[_State, tuple[float, _State]]


def count_steps(problem: Problem) -> int:
    """Return roughly how many steps `find_best` takes."""
    devices, blocks = len(problem.devices), len(problem.blocks)
    sets = devices if problem.given_order else math.prod(n + 1 for n in problem.kinds.values())
    loops = 1 if problem.held_by_stages_after is not None else devices
    # A stage has about as many possible lengths as it has blocks.
    return int(loops * sets * devices * devices * blocks * (blocks / devices + 1))


def find_best(problem: Problem, ceiling: float) -> tuple[float, Stages] | None:
    """Return the slowest stage's or transfer's seconds, and the stages.

    Return None if no division is faster than `ceiling`.
    """
    held = problem.held_by_stages_after
    if held is not None:
        return _find(problem, held, None, ceiling)
    found = None
    for stages in range(1, len(problem.devices) + 1):
        by_after = [problem.in_flight(stages - 1 - after, stages) for after in range(stages)]
        better = _find(problem, by_after, stages, ceiling)
        if better is not None:
            found, ceiling = better, better[0]
    return found


def _find(
    problem: Problem, held: Sequence[int], stages: int | None, ceiling: float
) -> tuple[float, Stages] | None:
    """Return the best division into `stages` stages, or any number of them, below `ceiling`."""
    count = len(problem.blocks)
    nothing = (0, -1, count)
    layers: list[_Layer] = []
    layer: _Layer = {nothing: (0.0, nothing)}
    whole: _State | None = None
    for after, micro_batches in enumerate(held):
        following: _Layer = {}
        for state, (seconds, _) in layer.items():
            used, first, end = state
            if seconds >= ceiling or end == 0:
                continue
            for device in _candidates(problem, used, first):
                least = seconds
                if first >= 0:
                    least = max(least, problem.transfer_seconds(device, first, end))
                if least >= ceiling:
                    continue
                sums = problem.seconds[device]
                now = 0 if problem.given_order else used | 1 << device
                for start in range(
                    problem.earliest_start(device, end, micro_batches, ceiling), end
                ):
                    slowest = max(least, sums[end] - sums[start])
                    key = (now, device, start)
                    if slowest < ceiling and (key not in following or slowest < following[key][0]):
                        following[key] = (slowest, state)
        layer = following
        layers.append(layer)
        if stages is None or after + 1 == stages:
            for state, (seconds, _) in layer.items():
                if state[2] == 0 and seconds < ceiling:
                    whole, ceiling = state, seconds
                    used_layers = layers[::-1]
    if whole is None:
        return None
    found: Stages = []
    for each in used_layers:
        seconds, later = each[whole]
        found.append((whole[1], whole[2], later[2]))
        whole = later
    return ceiling, found


def _candidates(problem: Problem, used: int, first: int) -> Iterator[int]:
    """Yield the devices that may come before device `first`; of equal ones, the first unused."""
    if problem.given_order:
        yield from range(first if first >= 0 else len(problem.devices))
        return
    kinds = set()
    for device in range(len(problem.devices)):
        kind = problem.kind_of[device]
        if not used >> device & 1 and kind not in kinds:
            kinds.add(kind)
            yield device
