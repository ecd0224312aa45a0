"""What each device of a pipeline computes, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class Work(Enum):
    """What a stage does with one micro-batch; the value is its letter in pictures."""

    FORWARD = "F"
    BACKWARD = "B"  # the gradients of inputs and parameters
    BACKWARD_INPUT = "I"  # the gradients of inputs only
    BACKWARD_WEIGHT = "W"  # the gradients of parameters, after BACKWARD_INPUT

    __hash__ = object.__hash__  # members are unique; Enum's own hash is slow


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work of one stage on one micro-batch."""

    work: Work
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.work.value}(stage {self.stage}, micro-batch {self.micro_batch})"


@dataclass(frozen=True)
class Schedule:
    """The tasks of each device, in order.

    A task waits for its `dependencies`, on whichever devices they run. A stage has a BACKWARD task
    for each micro-batch, or BACKWARD_INPUT and BACKWARD_WEIGHT: then its backward is split.

    Attributes:
        name: one of `named.SCHEDULE_NAMES`.
        micro_batches: the number of micro-batches.
        device_of_stage: the index of each stage's device. Neighbouring stages may share a device:
            the two in the middle of ``"zero-bubble-v"``, and all stages on a single device.
        tasks: the tasks of each device, in order.
    """

    name: str
    micro_batches: int
    device_of_stage: tuple[int, ...]
    tasks: tuple[tuple[Task, ...], ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.device_of_stage)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.tasks)

    @cached_property
    def split(self) -> frozenset[tuple[int, int]]:
        """The pairs (stage, micro-batch) whose backward is split."""
        return frozenset(pair for tasks in self.tasks for pair in find_split(tasks))

    def dependencies(self, task: Task) -> tuple[Task, ...]:
        """Return the tasks whose results `task` needs.

        ======== ==============================================================
        task     needs
        ======== ==============================================================
        F        F of the stage before
        B, I     F of its own stage; B or I of the stage after
        W        I of its own stage
        ======== ==============================================================
        """
        stage, micro_batch = task.stage, task.micro_batch
        if task.work is Work.FORWARD:
            return () if stage == 0 else (Task(Work.FORWARD, stage - 1, micro_batch),)
        if task.work is Work.BACKWARD_WEIGHT:
            return (Task(Work.BACKWARD_INPUT, stage, micro_batch),)
        forward = Task(Work.FORWARD, stage, micro_batch)
        if stage == self.stages - 1:
            return (forward,)
        is_split = (stage + 1, micro_batch) in self.split
        work = Work.BACKWARD_INPUT if is_split else Work.BACKWARD
        return (forward, Task(work, stage + 1, micro_batch))


def find_split(tasks: Iterable[Task]) -> frozenset[tuple[int, int]]:
    """Return the pairs (stage, micro-batch) of these tasks whose backward is split."""
    return frozenset(
        (task.stage, task.micro_batch) for task in tasks if task.work is Work.BACKWARD_INPUT
    )


def list_tasks(work: Work, stage: int, micro_batches: Iterable[int]) -> list[Task]:
    """Return the same work of one stage on several micro-batches, in order."""
    return [Task(work, stage, micro_batch) for micro_batch in micro_batches]
