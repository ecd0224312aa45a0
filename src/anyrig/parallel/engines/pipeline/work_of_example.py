"""The work of a module for the example that `spread` was given, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ....devices.device import Device
from ...accumulation import count_arguments
from ...plans import Pipeline
from .balance import block_seconds, bytes_of
from .chain import Chain
from .counted_micro_batches import PartWork, choose_by_work
from .micro_batches import MicroBatches, choose_micro_batches, cut_evenly
from .work import BlockWork, count_work


def count_work_of_example(
    chain: Chain, plan: Pipeline, micro_batches: int, dim: int
) -> tuple[list[BlockWork] | None, str]:
    """Return each block's work for a micro-batch of the example, or None and the reason."""
    if plan.example is None:
        return None, ""
    args, kwargs = plan.example
    parts, _ = cut_evenly(args, kwargs, None, micro_batches, dim)
    try:
        return count_work(chain, parts[0].args, parts[0].kwargs), ""
    except Exception as error:  # the module's own code
        first_line = f"{error}".partition("\n")[0]
        return None, (
            f". The example could not be counted without computing it ({type(error).__name__}: "
            f"{first_line})"
        )


def choose_for_example(
    chain: Chain,
    plan: Pipeline,
    schedule: str,
    devices: Sequence[Device],
    dim: int,
    dtype: torch.dtype,
    one_thread: bool,
) -> MicroBatches:
    """Return the number of micro-batches, by the work of the example if it is known.

    Args:
        chain: the blocks.
        plan: the plan, with the example.
        schedule: the schedule's name.
        devices: the devices that compute.
        dim: the dimension of the samples.
        dtype: the dtype in which products are computed.
        one_thread: whether one thread issues the operators of all devices.
    """
    begun = choose_micro_batches(plan.micro_batches, len(devices))
    if begun.is_given or plan.example is None:
        return begun
    args, kwargs = plan.example
    samples = count_arguments(tuple(args), dict(kwargs), dim)
    if samples is None or any(device.spec is None for device in devices):
        return replace(begun, reason=f"{begun.reason}. {_UNKNOWN}")

    # Each micro-batch's gradients are added to their sum: two tensors are read, one is written.
    added = 3 * bytes_of(chain.blocks, learning=True)

    def work_of(number: int) -> PartWork | None:
        work, _ = count_work_of_example(chain, plan, number, dim)
        if work is None:
            return None
        alone = [
            sum(block_seconds(work, device, dtype)) + added / device.spec.memory_bytes_per_second
            for device in devices
            if device.spec is not None
        ]
        shared = 1 / sum(1 / max(seconds, 1e-12) for seconds in alone)
        return PartWork(shared, sum(block.operators for block in work))

    return choose_by_work(begun, schedule, len(devices), samples, work_of, one_thread)


_UNKNOWN = "The example's samples, or the rates of the devices, are unknown"
