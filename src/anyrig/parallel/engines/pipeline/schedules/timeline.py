"""When each task of a schedule runs, computed in advance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .....errors import SpreadError
from .check import check, name_tasks
from .schedule import Schedule, Task, Work

UNIT_SECONDS: Mapping[Work, float] = MappingProxyType(
    {
        Work.FORWARD: 1.0,
        Work.BACKWARD: 2.0,
        Work.BACKWARD_INPUT: 1.0,
        Work.BACKWARD_WEIGHT: 1.0,
    }
)


@dataclass(frozen=True)
class Timeline:
    """When each task of a schedule runs.

    Attributes:
        schedule: the schedule.
        start_seconds: when each task starts, counted from the start of the step.
        end_seconds: when each task ends.
        total_seconds: when the last task ends.
        idle_shares: for each device, the part of `total_seconds` in which it computes nothing.
        most_in_flight: for each device, the most pairs (stage, micro-batch) at once whose forward
            pass has begun and whose gradients are not complete: their activations are in memory.
    """

    schedule: Schedule
    start_seconds: Mapping[Task, float]
    end_seconds: Mapping[Task, float]
    total_seconds: float
    idle_shares: tuple[float, ...]
    most_in_flight: tuple[int, ...]


def unit_seconds(task: Task) -> float:
    """Return the duration of a task if B is twice as long as F, and I and W are as long as F."""
    return UNIT_SECONDS[task.work]


def simulate(
    schedule: Schedule,
    seconds_of: Callable[[Task], float] = unit_seconds,
    transfer_seconds: float = 0.0,
) -> Timeline:
    """Return when each task runs, if each starts once its device is free and its inputs are there.

    Args:
        schedule: the schedule.
        seconds_of: how long a task takes.
        transfer_seconds: how long a result travels from one device to another. Devices compute
            meanwhile.

    Raises:
        SpreadError: the schedule does not have all tasks, or has tasks that wait for each other.
    """
    check(schedule)
    ends: dict[Task, float] = {}
    starts: dict[Task, float] = {}
    free = [0.0] * schedule.devices
    following = [0] * schedule.devices  # each device's next task
    is_blocked = False
    while not is_blocked:
        is_blocked = True
        for device, tasks in enumerate(schedule.tasks):
            while following[device] < len(tasks):
                task = tasks[following[device]]
                start = _find_start(schedule, task, device, ends, transfer_seconds)
                if start is None:
                    break
                starts[task] = max(start, free[device])
                ends[task] = free[device] = starts[task] + seconds_of(task)
                following[device] += 1
                is_blocked = False
    if any(next_ < len(tasks) for next_, tasks in zip(following, schedule.tasks, strict=True)):
        raise SpreadError(_describe_deadlock(schedule, following, ends))
    total = max(free)
    return Timeline(
        schedule,
        MappingProxyType(starts),
        MappingProxyType(ends),
        total,
        tuple(_idle_share(tasks, seconds_of, total) for tasks in schedule.tasks),
        tuple(_count_in_flight(schedule, tasks) for tasks in schedule.tasks),
    )


def issue_order(schedule: Schedule) -> tuple[Task, ...]:
    """Return an order in which one thread can issue the tasks of all devices.

    A task comes after its dependencies and after the tasks before it on its device. Tasks come in
    the order in which they start if F, I and W take equally long.

    Raises:
        SpreadError: the schedule does not have all tasks, or has tasks that wait for each other.
    """
    starts = simulate(schedule).start_seconds
    return tuple(sorted(starts, key=lambda task: (starts[task], task.stage)))


def _find_start(
    schedule: Schedule,
    task: Task,
    device: int,
    ends: Mapping[Task, float],
    transfer_seconds: float,
) -> float | None:
    """Return when the results that `task` needs are on its device; None if not known yet."""
    start = 0.0
    for needed in schedule.dependencies(task):
        if needed not in ends:
            return None
        is_near = schedule.device_of_stage[needed.stage] == device
        start = max(start, ends[needed] + (0.0 if is_near else transfer_seconds))
    return start


def _idle_share(
    tasks: tuple[Task, ...], seconds_of: Callable[[Task], float], total_seconds: float
) -> float:
    if total_seconds == 0.0:
        return 0.0
    return 1.0 - sum(map(seconds_of, tasks)) / total_seconds


def _count_in_flight(schedule: Schedule, tasks: tuple[Task, ...]) -> int:
    count = most = 0
    for task in tasks:
        if task.work is Work.FORWARD:
            count += 1
            most = max(most, count)
        elif task.work is not Work.BACKWARD_INPUT:
            count -= 1
    has_backward = any(task.work is not Work.FORWARD for task in tasks)
    return most if has_backward else min(most, 1)


def _describe_deadlock(schedule: Schedule, following: list[int], ends: Mapping[Task, float]) -> str:
    waiting = [
        f"device {device} waits at {tasks[position]} for "
        + name_tasks(
            needed for needed in schedule.dependencies(tasks[position]) if needed not in ends
        )
        for device, (position, tasks) in enumerate(zip(following, schedule.tasks, strict=True))
        if position < len(tasks)
    ]
    return (
        f"schedule {schedule.name!r} of {schedule.stages} stages and {schedule.micro_batches} "
        f"micro-batches never ends: {'; '.join(waiting)}. Correct the order of tasks, or use a "
        "schedule of anyrig: schedule='1f1b'"
    )
