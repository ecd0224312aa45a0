"""1F1B: each device begins backward passes as early as possible."""

from __future__ import annotations

from .schedule import Schedule, Task, Work, list_tasks


def one_forward_one_backward(devices: int, micro_batches: int) -> Schedule:
    """Return the schedule 1F1B.

    It takes as long as GPipe, and device d holds the activations of at most ``devices - d``
    micro-batches: as many forward passes as there are devices from d to the last, then one
    backward and one forward pass in turn.

    3 devices, 4 micro-batches, a backward pass twice as long as a forward pass::

        device 0  F0F1F2........B0--F3B1--..B2--..B3--
        device 1  ..F0F1....B0--F2B1--F3B2--..B3--....
        device 2  ....F0B0--F1B1--F2B2--F3B3--........
    """
    return Schedule(
        "1f1b",
        micro_batches,
        tuple(range(devices)),
        tuple(_device_tasks(device, devices, micro_batches) for device in range(devices)),
    )


def _device_tasks(device: int, devices: int, micro_batches: int) -> tuple[Task, ...]:
    ahead = min(devices - device - 1, micro_batches)
    tasks = list_tasks(Work.FORWARD, device, range(ahead))
    for micro_batch in range(micro_batches):
        if micro_batch + ahead < micro_batches:
            tasks.append(Task(Work.FORWARD, device, micro_batch + ahead))
        tasks.append(Task(Work.BACKWARD, device, micro_batch))
    return tuple(tasks)
