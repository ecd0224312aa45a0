"""How many micro-batches make a step fastest, by counted work and published rates.

::

    1 micro-batch on each of 3 devices       idle turns, operators at their full speed
    12 smaller ones                          few idle turns, but weights are read 12 times, and each
                                             operator is issued 12 times

Nothing is timed, so that a program computes with the same micro-batches in every run: the random
numbers of dropout and the last bits of sums depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .micro_batches import MicroBatches
from .schedules.named import make_schedule
from .schedules.timeline import simulate

# PyTorch issues an operator in 3 to 10 microseconds.
ISSUE_SECONDS = 5e-6
# A forward pass, and a backward pass of twice its work.
_PASSES = 3
# How many micro-batches for each device are tried.
_TRIED_PER_DEVICE = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class PartWork:
    """The work of one micro-batch, in all stages.

    Attributes:
        seconds: the time of forward and backward, divided evenly among the devices.
        operators: how many operators the forward pass calls.
    """

    seconds: float
    operators: int


def step_seconds(
    part: PartWork, schedule: str, devices: int, micro_batches: int, one_thread: bool
) -> float:
    """Return the time of a step.

    Args:
        part: the work of one micro-batch.
        schedule: the schedule's name.
        devices: the number of devices.
        micro_batches: the number of micro-batches.
        one_thread: whether one thread issues the operators of all devices.
    """
    made = make_schedule(schedule, devices, micro_batches)
    stages_per_device = made.stages // devices
    turns = simulate(made).total_seconds / (_PASSES * stages_per_device)
    issued = _PASSES * part.operators * ISSUE_SECONDS
    if one_thread:
        return max(turns * part.seconds, micro_batches * issued)
    return turns * max(part.seconds, issued / devices)


def choose_by_work(
    begun: MicroBatches,
    schedule: str,
    devices: int,
    samples: int,
    work_of: Callable[[int], PartWork | None],
    one_thread: bool,
) -> MicroBatches:
    """Return the number of micro-batches with which a step is fastest.

    Args:
        begun: the choice without counted work, which is returned if work is unknown.
        schedule: the schedule's name.
        devices: the number of devices.
        samples: the number of samples in the batch that is divided.
        work_of: returns the work of one micro-batch, given their number; None if unknown.
        one_thread: see `step_seconds`.
    """
    tried: dict[int, float] = {}
    for each in _TRIED_PER_DEVICE:
        number = min(each * devices, samples)
        part = None if number in tried else work_of(number)
        if part is not None:
            tried[number] = step_seconds(part, schedule, devices, number, one_thread)
    if not tried:
        return begun
    best = min(tried, key=lambda number: (tried[number], number))
    return MicroBatches(best, _explain(tried, best, devices, samples), False)


def _explain(tried: dict[int, float], best: int, devices: int, samples: int) -> str:
    others: Sequence[int] = [number for number in tried if number != best]
    compared = ", ".join(f"{1e3 * tried[number]:.3g} with {number}" for number in others)
    return (
        f"as a step with {samples} samples takes {1e3 * tried[best]:.3g} ms by published rates"
        + (f", against {compared}" if compared else "")
        + "; never more than there are samples"
    )
