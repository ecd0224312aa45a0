"""The intervals of some steps as tasks that wait for each other, to be scheduled again.

::

    host      |launch a|launch b|.. wait for b ..|launch c|
    stream             |=== a ===|=== b ========|         |== c ==|

    b follows a on its stream, and its launch; the wait follows b; the launch of c follows the wait.

Each task begins when the last of the tasks that it follows has ended. Every edge was seen in the
record: the order on each stream, link and host, each launch, and whatever ended at the moment at
which a task began. A task that began later than its edges explain keeps the delay. So without a
change, the tasks take the times of the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from ...virtual.record_reading import IntervalKind


class Follows(Enum):
    """Why a task follows another one."""

    TRACK = auto()  # on its stream, or on the host
    LAUNCH = auto()
    RESOURCE = auto()  # the multiprocessors, or a link
    MOMENT = auto()  # it waited for it


class Edge(NamedTuple):
    """Says that a task begins after another task has ended.

    Attributes:
        follows: why.
        task: the place of the other task.
        head_start: how many seconds before the end of the other task this one may begin: the first
            of several kernels runs while the others are launched.
    """

    follows: Follows
    task: int
    head_start: float = 0.0


class Task(NamedTuple):
    """One interval of the record.

    Attributes:
        interval: its index in the record.
        kind: an `IntervalKind`.
        track: the index of its track.
        step: which of the scheduled steps it belongs to, counted from 0.
        seconds: how long it takes; 0 for a wait, which ends with the work that is waited for.
        delay: how much later it began than its edges explain.
        floor: the moment before which it cannot begin, because of what came before the scheduled
            steps.
        edges: the tasks that it follows.
        launch: the place of the task that launched it; None for the host's own.
        tail: how long the last of its kernels takes: the task ends no sooner than that after its
            launch.
    """

    interval: int
    kind: IntervalKind
    track: int
    step: int
    seconds: float
    delay: float
    floor: float
    edges: tuple[Edge, ...]
    launch: int | None
    tail: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """The tasks of some successive steps, in the order in which they begin.

    Attributes:
        begin: when the first of these steps began, in seconds.
        steps: the number of the steps.
        tasks: the tasks. An edge leads to a task with a lower place.
    """

    begin: float
    steps: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class StepSpan:
    """Successive steps of all processes.

    Attributes:
        begin: when the first one began, in seconds.
        hosts: for each rank, its host's time at the start of the first step and at the end of each.
    """

    begin: float
    hosts: Mapping[int, Sequence[float]]


@dataclass(frozen=True)
class KernelBatch:
    """The kernels that one call launches, one after the other.

    Attributes:
        launch_seconds: how long the host takes for the launches after the first one.
        seconds: how long the kernels take together.
        last_seconds: how long the last one takes.
    """

    launch_seconds: float
    seconds: float
    last_seconds: float
