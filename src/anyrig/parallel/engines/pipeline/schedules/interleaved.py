"""Interleaved 1F1B: several stages on each device, so that the pipeline fills sooner."""

from __future__ import annotations

from itertools import pairwise

from .schedule import Schedule, Task, Work


def interleaved(devices: int, micro_batches: int, stages_per_device: int) -> Schedule:
    """Return the schedule of interleaved 1F1B; device d has the stages d, d + devices, ...

    Its idle time is that of 1F1B divided by `stages_per_device`, for more transfers and more
    activations. A device computes a *round* of micro-batches in its first stage, the same round in
    its second stage, and so on. A round has at least as many micro-batches as there are devices,
    so that a micro-batch is back at the first device when its turn comes; rounds differ in size by
    at most one micro-batch.

    2 devices with 2 stages each (lower case: the second stage), 3 micro-batches in one round, a
    backward pass twice as long as a forward pass::

        device 0  F0F1F2f0f1f2..b0--..b1--..b2--B0--B1--B2--
        device 1  ..F0F1F2f0b0--f1b1--f2b2--B0--B1--B2--....
    """
    return Schedule(
        "interleaved",
        micro_batches,
        tuple(stage % devices for stage in range(devices * stages_per_device)),
        tuple(
            _device_tasks(device, devices, micro_batches, stages_per_device)
            for device in range(devices)
        ),
    )


def split_rounds(devices: int, micro_batches: int) -> list[range]:
    """Return the micro-batches of each round.

    With fewer micro-batches than devices there is one round.
    """
    rounds = max(1, micro_batches // devices)
    bounds = [-(-micro_batches * number // rounds) for number in range(rounds + 1)]
    return [range(first, end) for first, end in pairwise(bounds)]


def _device_tasks(
    device: int, devices: int, micro_batches: int, stages_per_device: int
) -> tuple[Task, ...]:
    rounds = split_rounds(devices, micro_batches)
    turns = range(stages_per_device)
    forwards = [
        Task(Work.FORWARD, device + turn * devices, micro_batch)
        for each in rounds
        for turn in turns
        for micro_batch in each
    ]
    backwards = [
        Task(Work.BACKWARD, device + turn * devices, micro_batch)
        for each in rounds
        for turn in reversed(turns)
        for micro_batch in each
    ]
    # First a round in all stages but the last, and two forward passes for each later device.
    longest = max(len(each) for each in rounds)
    ahead = min((stages_per_device - 1) * longest + 2 * (devices - device - 1), len(forwards))
    tasks = forwards[:ahead]
    for number, backward in enumerate(backwards):
        tasks += [*forwards[ahead + number : ahead + number + 1], backward]
    return tuple(tasks)
