"""What each device of a pipeline computes, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Work(Enum):
    """What a stage does with one micro-batch; the value is its letter in pictures."""

    FORWARD = "F"
    BACKWARD = "B"  # the gradients of inputs and parameters
    BACKWARD_INPUT = "I"  # the gradients of inputs only
    BACKWARD_WEIGHT = "W"  # the gradients of parameters, after BACKWARD_INPUT


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work of one stage on one micro-batch."""

    work: Work
    stage: int
    micro_batch: int


@dataclass(frozen=True)
class Schedule:
    """The tasks of each device, in order.

    A task waits for the tasks whose results it needs, on whichever devices: a forward for that of
    the stage before, a backward for its own forward and the backward of the stage after.

    Attributes:
        name: ``"gpipe"``, ``"1f1b"``, ``"interleaved"``, ``"zero-bubble"``, ``"zero-bubble-v"`` or
            ``"forward"``.
        micro_batches: the number of micro-batches.
        device_of_stage: the index of each stage's device. With several stages on a device, these
            are not neighbours.
        tasks: of each device, in order.
    """

    name: str
    micro_batches: int
    device_of_stage: tuple[int, ...]
    tasks: tuple[tuple[Task, ...], ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.device_of_stage)
