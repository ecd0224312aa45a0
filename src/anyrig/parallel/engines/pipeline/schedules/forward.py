"""Inference: only forward passes."""

from __future__ import annotations

from .schedule import Schedule, Work, list_tasks


def forward(devices: int, micro_batches: int) -> Schedule:
    """Return the schedule of inference.

    3 devices, 4 micro-batches::

        device 0  F0F1F2F3....
        device 1  ..F0F1F2F3..
        device 2  ....F0F1F2F3
    """
    return Schedule(
        "forward",
        micro_batches,
        tuple(range(devices)),
        tuple(
            tuple(list_tasks(Work.FORWARD, device, range(micro_batches)))
            for device in range(devices)
        ),
    )
