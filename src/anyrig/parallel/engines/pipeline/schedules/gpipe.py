"""GPipe: all micro-batches forward, then all backward."""

from __future__ import annotations

from .schedule import Schedule, Work, list_tasks


def gpipe(devices: int, micro_batches: int) -> Schedule:
    """Return the schedule of GPipe.

    Each device holds the activations of all micro-batches at the end of the forward passes.

    3 devices, 4 micro-batches, a backward pass twice as long as a forward pass::

        device 0  F0F1F2F3............B0--B1--B2--B3--
        device 1  ..F0F1F2F3......B0--B1--B2--B3--....
        device 2  ....F0F1F2F3B0--B1--B2--B3--........
    """
    every = range(micro_batches)
    return Schedule(
        "gpipe",
        micro_batches,
        tuple(range(devices)),
        tuple(
            (*list_tasks(Work.FORWARD, device, every), *list_tasks(Work.BACKWARD, device, every))
            for device in range(devices)
        ),
    )
