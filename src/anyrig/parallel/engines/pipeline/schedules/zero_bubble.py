"""Zero bubble (ZB-H1): weight gradients fill the time in which a device would wait."""

from __future__ import annotations

from .schedule import Schedule, Task, Work, list_tasks


def zero_bubble(devices: int, micro_batches: int) -> Schedule:
    """Return the schedule ZB-H1 of https://arxiv.org/abs/2401.10241.

    A backward pass is split: the gradients of inputs (I) are computed at once, because the device
    before waits for them; the gradients of weights (W) later. Device d computes W of a micro-batch
    after I of the micro-batch d places later, so that each device holds at most `devices`
    micro-batches, as the first device of 1F1B does. No device waits for the gradients of the first
    stage, whose backward pass is therefore not split.

    3 devices, 4 micro-batches, F, I and W equally long::

        device 0  F0F1F2....B0--F3B1--B2--B3--
        device 1  ..F0F1..I0F2I1W0F3I2W1I3W2W3
        device 2  ....F0I0F1I1F2I2W0F3I3W1W2W3
    """
    return Schedule(
        "zero-bubble",
        micro_batches,
        tuple(range(devices)),
        tuple(_device_tasks(device, devices, micro_batches) for device in range(devices)),
    )


def _device_tasks(device: int, devices: int, micro_batches: int) -> tuple[Task, ...]:
    ahead = min(devices - device - 1, micro_batches)
    backward = Work.BACKWARD if device == 0 else Work.BACKWARD_INPUT
    tasks = list_tasks(Work.FORWARD, device, range(ahead))
    for micro_batch in range(micro_batches):
        if micro_batch + ahead < micro_batches:
            tasks.append(Task(Work.FORWARD, device, micro_batch + ahead))
        tasks.append(Task(backward, device, micro_batch))
        if 0 < device <= micro_batch:
            tasks.append(Task(Work.BACKWARD_WEIGHT, device, micro_batch - device))
    if device > 0:
        rest = range(max(0, micro_batches - device), micro_batches)
        tasks += list_tasks(Work.BACKWARD_WEIGHT, device, rest)
    return tuple(tasks)
