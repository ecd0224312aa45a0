"""Zero bubble that splits few backward passes, since a split one keeps memory and takes longer."""

from __future__ import annotations

from .schedule import Schedule, Task, Work, list_tasks
from .zero_bubble_h2 import zero_bubble_h2


def zero_bubble_few(devices: int, micro_batches: int) -> Schedule:
    """Return a schedule that takes as long as ZB-H2, with fewer backward passes split.

    Device d begins with ``2 * (devices - d) - 1`` forward passes, as in `zero_bubble_h2`. It splits
    only its first ``4 * d`` backward passes, and computes their W at the end, while the device
    before it computes its last backward pass, updates its parameters, and computes the first
    forward pass of the next step. Three W would be as long as these passes if F, I and W took
    equally long; attention has no weights, so that W takes about three quarters of F in a
    transformer. A device never waits after its first task in either case. A transfer delays a step
    by three times its length for each device but the first. A device holds at most
    ``4 * devices - 3`` micro-batches, where `zero_bubble_h2` holds ``2 * devices - 1``.

    With fewer than ``4 * devices`` micro-batches, this is `zero_bubble_h2`.

    2 devices, 8 micro-batches, F, I and W equally long::

        device 0  F0F1F2B0--F3B1--F4B2--F5B3--F6B4--F7B5--B6--B7--..
        device 1  ..F0I0F1I1F2I2F3I3F4B4--F5B5--F6B6--F7B7--W0W1W2W3
    """
    if micro_batches < 4 * devices:
        tasks = zero_bubble_h2(devices, micro_batches).tasks
    else:
        tasks = tuple(_device_tasks(device, devices, micro_batches) for device in range(devices))
    return Schedule("zero-bubble-few", micro_batches, tuple(range(devices)), tasks)


def _device_tasks(device: int, devices: int, micro_batches: int) -> tuple[Task, ...]:
    ahead = 2 * (devices - device) - 1
    split = 4 * device
    tasks = list_tasks(Work.FORWARD, device, range(ahead))
    for micro_batch in range(micro_batches):
        backward = Work.BACKWARD_INPUT if micro_batch < split else Work.BACKWARD
        tasks.append(Task(backward, device, micro_batch))
        if micro_batch + ahead < micro_batches:
            tasks.append(Task(Work.FORWARD, device, micro_batch + ahead))
    return (*tasks, *list_tasks(Work.BACKWARD_WEIGHT, device, range(split)))
