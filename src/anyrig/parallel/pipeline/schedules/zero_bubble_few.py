"""Zero bubble that splits few backward passes, since a split one takes longer in Python."""

from __future__ import annotations

from .schedule import Schedule, Task, Work, list_tasks
from .zero_bubble_h2 import zero_bubble_h2


def zero_bubble_few(devices: int, micro_batches: int) -> Schedule:
    """Return a schedule that takes as long as ZB-H2, with fewer backward passes split.

    Device d begins with ``2 * (devices - d) - 1`` forward passes, as in `zero_bubble_h2`. It splits
    only its first ``3 * d`` backward passes, and computes their W at the end, while the devices
    before it compute their last backward passes. If F, I and W take equally long, a device never
    waits after its first task; a transfer that takes half as long as a task, or less, delays the
    last device only while the pipeline fills. A device holds at most ``3 * devices - 2``
    micro-batches, where `zero_bubble_h2` holds ``2 * devices - 1``.

    With fewer than ``3 * devices`` micro-batches, this is `zero_bubble_h2`.

    2 devices, 6 micro-batches, F, I and W equally long::

        device 0  F0F1F2B0--F3B1--F4B2--F5B3--B4--B5--..
        device 1  ..F0I0F1I1F2I2F3B3--F4B4--F5B5--W0W1W2
    """
    if micro_batches < 3 * devices:
        tasks = zero_bubble_h2(devices, micro_batches).tasks
    else:
        tasks = tuple(_device_tasks(device, devices, micro_batches) for device in range(devices))
    return Schedule("zero-bubble-few", micro_batches, tuple(range(devices)), tasks)


def _device_tasks(device: int, devices: int, micro_batches: int) -> tuple[Task, ...]:
    ahead = 2 * (devices - device) - 1
    split = 3 * device
    tasks = list_tasks(Work.FORWARD, device, range(ahead))
    for micro_batch in range(micro_batches):
        backward = Work.BACKWARD_INPUT if micro_batch < split else Work.BACKWARD
        tasks.append(Task(backward, device, micro_batch))
        if micro_batch + ahead < micro_batches:
            tasks.append(Task(Work.FORWARD, device, micro_batch + ahead))
    return (*tasks, *list_tasks(Work.BACKWARD_WEIGHT, device, range(split)))
