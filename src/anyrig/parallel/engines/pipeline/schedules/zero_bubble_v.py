"""Zero bubble in the form of a V (ZB-V): the first device has the first and the last stage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from .schedule import Schedule, Task, Work


def zero_bubble_v(devices: int, micro_batches: int) -> Schedule:
    """Return the schedule ZB-V of https://arxiv.org/abs/2401.10241.

    Device d has stage d (*down*) and stage ``2 * devices - 1 - d`` (*up*, in lower case). After
    the first micro-batch has arrived, a device never waits if F, I and W take equally long and
    there are at least ``2 * devices - 1`` micro-batches. A device holds at most ``2 * devices``
    activations, which are those of stages half as large as those of 1F1B.

    2 devices, 4 micro-batches, F, I and W equally long::

        device 0  F0F1F2f0i0w0f1i1w1F3B0--f2i2w2B1--f3i3w3B2--B3--..
        device 1  ..F0f0F1f1i0w0F2I0W0f2i1w1F3I1W1f3i2w2I2i3I3W2w3W3
    """
    down_and_up = (*range(devices), *reversed(range(devices)))
    return Schedule(
        "zero-bubble-v",
        micro_batches,
        down_and_up,
        tuple(
            tuple(
                task
                for task in _device_tasks(device, devices, max(micro_batches, 2 * devices - 1))
                if task.micro_batch < micro_batches
            )
            for device in range(devices)
        ),
    )


def _device_tasks(device: int, devices: int, micro_batches: int) -> list[Task]:
    """Return the tasks of a device for at least ``2 * devices - 1`` micro-batches."""
    down, up = device, 2 * devices - 1 - device
    # Iterators over the tasks of a kind. The backward pass of the first stage is not split.
    backward = Work.BACKWARD if down == 0 else Work.BACKWARD_INPUT
    down_f, up_f = _each(Work.FORWARD, down), _each(Work.FORWARD, up)
    down_i, up_i = _each(backward, down), _each(Work.BACKWARD_INPUT, up)
    down_w, up_w = _each(Work.BACKWARD_WEIGHT, down), _each(Work.BACKWARD_WEIGHT, up)
    down_weight = [] if down == 0 else [down_w]

    behind = devices - device
    turns = [
        *[down_f] * (2 * behind - 1),
        *[up_f, down_f] * device,
        *[up_f, up_i, up_w] * behind,
    ]
    for number in range(micro_batches - devices):
        if number + devices + behind - 1 < micro_batches:
            turns.append(down_f)
        turns += [down_i, *down_weight, up_f, up_i, up_w]
    turns += [
        *[down_i, up_i] * device,
        *[down_i, *down_weight] * behind,
        *[up_w, *down_weight] * device,
    ]
    return [next(turn) for turn in turns]


def _each(work: Work, stage: int) -> Iterator[Task]:
    return (Task(work, stage, micro_batch) for micro_batch in count())
