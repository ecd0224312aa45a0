"""Zero bubble with more micro-batches in flight (ZB-H2), so that no device waits for transfers."""

from __future__ import annotations

from .schedule import Schedule, Task, Work, list_tasks


def zero_bubble_h2(devices: int, micro_batches: int) -> Schedule:
    """Return the schedule ZB-H2 of https://arxiv.org/abs/2401.10241.

    Device d begins with ``2 * (devices - d) - 1`` forward passes, and computes W of a micro-batch
    after I of the micro-batch 2 d places later; see `zero_bubble`. If F, I and W take equally long
    and there are at least ``2 * devices - 1`` micro-batches, a device never waits after its first
    task. A transfer that takes as long as a task, or less, delays the last device only while the
    pipeline fills. A device holds at most ``2 * devices - 1`` micro-batches, where `zero_bubble`
    holds `devices`.

    2 devices, 5 micro-batches, F, I and W equally long::

        device 0  F0F1F2B0--F3B1--F4B2--B3--B4--..
        device 1  ..F0I0F1I1F2I2W0F3I3W1F4I4W2W3W4
    """
    return Schedule(
        "zero-bubble-h2",
        micro_batches,
        tuple(range(devices)),
        tuple(_device_tasks(device, devices, micro_batches) for device in range(devices)),
    )


def _device_tasks(device: int, devices: int, micro_batches: int) -> tuple[Task, ...]:
    ahead = min(2 * (devices - device) - 1, micro_batches)
    behind = 2 * device
    # No device waits for the gradients of the first stage: its backward pass is not split.
    backward = Work.BACKWARD if device == 0 else Work.BACKWARD_INPUT
    tasks = list_tasks(Work.FORWARD, device, range(ahead))
    for micro_batch in range(micro_batches):
        tasks.append(Task(backward, device, micro_batch))
        if 0 < behind <= micro_batch:
            tasks.append(Task(Work.BACKWARD_WEIGHT, device, micro_batch - behind))
        if micro_batch + ahead < micro_batches:
            tasks.append(Task(Work.FORWARD, device, micro_batch + ahead))
    if device > 0:
        rest = range(max(0, micro_batches - behind), micro_batches)
        tasks += list_tasks(Work.BACKWARD_WEIGHT, device, rest)
    return tuple(tasks)
