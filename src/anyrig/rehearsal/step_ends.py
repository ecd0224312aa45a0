"""Where the steps of a program end, and which are the first ones."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# A step is like the later ones if its time is within this fraction of their median.
_TOLERANCE = 0.05


@dataclass(frozen=True)
class StepEnd:
    """The end of a step.

    Attributes:
        seconds: when all work launched until then is done, in seconds of virtual time.
        host_seconds: the host's virtual time then. The host runs ahead of the devices.
        samples: the samples that data loaders have returned since the previous end; None if none.
        loader_wall_seconds: how long the program has waited for them, by the wall clock.
    """

    seconds: float
    host_seconds: float
    samples: int | None
    loader_wall_seconds: float


def count_first_steps(seconds: Sequence[float]) -> int:
    """Return how many steps at the beginning differ in time from the others.

    The first step always does: it includes what the program does before its loop. At most half of
    the steps differ. A single step counts as a first one.
    """
    count = min(1, len(seconds))
    while count < len(seconds) // 2:
        median = statistics.median(seconds[count:])
        if abs(seconds[count] - median) <= _TOLERANCE * median:
            break
        count += 1
    return count


def samples_of_steps(loaded: Sequence[int | None]) -> list[int | None]:
    """Return the samples that each step computes with, from those that were loaded in it.

    A loader that is read ahead, as by `anyrig.prefetch`, gives several batches before the first
    step and none in the last steps of an epoch. There, each step takes what most steps load, as
    long as there is some left::

        loaded       96    32    32    32    16  None  None
        computed     32    32    32    32    32    32    16

    If a step would be left with nothing, `loaded` is returned as it is: the program does something
    else, such as several steps with one batch.
    """
    known = [count for count in loaded[1:] if count]
    if None not in loaded or not known:
        return list(loaded)
    usual, waiting = round(statistics.median(known)), 0
    computed: list[int | None] = []
    for count in loaded:
        waiting += count or 0
        computed.append(min(usual, waiting))
        waiting -= min(usual, waiting)
    return computed if all(computed) else list(loaded)
