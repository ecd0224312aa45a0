"""What a remedy changes in a schedule, and how long the steps take then."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from .schedule import Edge, Follows, Schedule


@dataclass(frozen=True)
class Change:
    """A change of a schedule. A task is named by its place, which is its index in `Schedule.tasks`.

    Attributes:
        removed: the tasks to take out. What followed such a task now follows what preceded the task
            on its track.
        seconds: the new durations of tasks.
        edges: the new edges of tasks.
    """

    removed: AbstractSet[int] = frozenset()
    seconds: Mapping[int, float] = field(default_factory=dict)
    edges: Mapping[int, tuple[Edge, ...]] = field(default_factory=dict)

    def __or__(self, other: Change) -> Change:
        """Return both changes together; where both change a task, `other` wins."""
        return Change(
            self.removed | other.removed,
            {**self.seconds, **other.seconds},
            {**self.edges, **other.edges},
        )


def step_seconds(schedule: Schedule, change: Change | None = None) -> list[float]:
    """Return how long each of the steps takes with the change."""
    last = [schedule.begin] * schedule.steps
    for task, end in zip(schedule.tasks, end_moments(schedule, change), strict=True):
        last[task.step] = max(last[task.step], end)
    seconds, before = [], schedule.begin
    for end in last:
        end = max(end, before)
        seconds.append(end - before)
        before = end
    return seconds


def end_moments(schedule: Schedule, change: Change | None = None) -> list[float]:
    """Return when each task ends with the change, in seconds."""
    change = change or Change()
    ends: list[float] = []
    for place, task in enumerate(schedule.tasks):
        edges = change.edges.get(place, task.edges) if change.edges else task.edges
        start = task.floor
        if place in change.removed:
            for edge in edges:
                if edge.follows is Follows.TRACK:
                    start = max(start, ends[edge.task])
            ends.append(start)
            continue
        for _, other, head_start in edges:
            ready = ends[other] - head_start
            if ready > start:
                start = ready
        end = start + task.delay + change.seconds.get(place, task.seconds)
        if task.tail > 0 and task.launch is not None:
            end = max(end, ends[task.launch] + task.tail)
        ends.append(end)
    return ends


def typical_seconds(schedule: Schedule, change: Change | None = None) -> float:
    """Return how long a step takes once the program has run with the change for a while.

    That is the median of the steps after the first one, in which the host may still be building up
    its lead over the devices.
    """
    seconds = step_seconds(schedule, change)
    return statistics.median(seconds[1:] or seconds)
