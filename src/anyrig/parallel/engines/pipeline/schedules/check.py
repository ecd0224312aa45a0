"""Whether a schedule has each task once, on the right device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import product

from .....errors import SpreadError
from .schedule import Schedule, Task, Work

_SHOWN = 5  # tasks in a message


def check(schedule: Schedule) -> None:
    """Check that each stage has its tasks for each micro-batch exactly once, on its own device.

    Whether the order lets every task run is checked by `simulate`.

    Raises:
        SpreadError: tasks are missing, occur twice, or are not on their stage's device.
    """
    counts = Counter(task for tasks in schedule.tasks for task in tasks)
    expected = _expected_tasks(schedule)
    misplaced = [
        task
        for device, tasks in enumerate(schedule.tasks)
        for task in tasks
        if task in expected and schedule.device_of_stage[task.stage] != device
    ]
    problems = {
        "does not have": sorted(expected - set(counts), key=str),
        "has more than once": [task for task, number in counts.items() if number > 1],
        "should not have": [task for task in counts if task not in expected],
        "has on the wrong device": misplaced,
    }
    found = [f"{problem} {name_tasks(tasks)}" for problem, tasks in problems.items() if tasks]
    if found:
        raise SpreadError(
            f"schedule {schedule.name!r} of {schedule.stages} stages and {schedule.micro_batches} "
            f"micro-batches {', and '.join(found)}. Correct the order of tasks, or use a schedule "
            "of anyrig: schedule='1f1b'"
        )


def name_tasks(tasks: Iterable[Task]) -> str:
    """Return the first few of the tasks, and the number of the others, as text."""
    named = [str(task) for task in tasks]
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return ", ".join(named[:_SHOWN]) + more


def _expected_tasks(schedule: Schedule) -> set[Task]:
    is_training = any(task.work is not Work.FORWARD for tasks in schedule.tasks for task in tasks)
    expected: set[Task] = set()
    for stage, number in product(range(schedule.stages), range(schedule.micro_batches)):
        kinds = [Work.FORWARD]
        if (stage, number) in schedule.split:
            kinds += [Work.BACKWARD_INPUT, Work.BACKWARD_WEIGHT]
        elif is_training:
            kinds += [Work.BACKWARD]
        expected.update(Task(kind, stage, number) for kind in kinds)
    return expected
