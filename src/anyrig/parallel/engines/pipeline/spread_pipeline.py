"""Dividing a module into stages over a rig: the plan `Pipeline` in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ....devices.device import Device
from ....devices.place import Place
from ....errors import SpreadError
from ....transfer.move import resolve_device
from ....units import format_count
from ...compiling import refuse_compiled_root
from ...layout import Layout
from ...losses.loss import Criterion
from ...plans import Pipeline
from ...spread_module import SpreadModule
from .balance import Balance, balance_blocks, dtype_of
from .chain import Chain
from .chosen_schedule import choose_schedule
from .engine import PipelineEngine
from .placement import make_stages, place_module
from .schedules.named import fewest_stages_per_device, make_schedule
from .split.chain_of import chain_of
from .stage_table import make_stage_table
from .work_of_example import choose_for_example, count_work_of_example


def spread_pipeline(
    module: torch.nn.Module,
    layout: Layout,
    loss: Criterion | None,
    plan: Pipeline,
    output_device: Place | None,
    rig: Sequence[Device],
) -> SpreadModule:
    """Return a module in stages on the devices of `layout`; move its parts there.

    Outputs are joined on the device of the last stage unless `output_device` is given.

    Raises:
        SpreadError: the module cannot be divided, or the plan does not fit.
    """
    refuse_compiled_root(module)
    name, reason = choose_schedule(plan, module, loss, layout.precision)
    chain = chain_of(
        module,
        plan.split_points,
        example=plan.example,
        device=layout.devices[0],
        dim=layout.dim,
    )
    blocks, devices = chain.blocks, layout.devices
    per_device = fewest_stages_per_device(name)
    if len(blocks) < per_device * len(devices):
        if per_device * 2 > len(blocks):
            raise SpreadError(
                f"{type(module).__name__} has {format_count(len(blocks), 'block')} that can be "
                f"on different devices, and the schedule {name!r} on two devices needs "
                f"{2 * per_device}; use plan=Replicas(), or divide the module into more layers"
            )
        devices = devices[: len(blocks) // per_device]
    offered = rig[: len(devices)]
    while True:
        dtype = dtype_of(module, layout.precision)
        micro_batches = choose_for_example(
            chain, plan, name, offered, layout.dim, dtype, one_thread=True
        )
        number = micro_batches.number
        balance = _balance(module, chain, offered, name, per_device, number, plan, layout)
        if len(balance.devices) == len(devices):
            break
        # Fewer devices take fewer and larger micro-batches: balance again.
        offered = [offered[index] for index in balance.devices]
        devices = tuple(devices[index] for index in balance.devices)
    schedule = make_schedule(name, len(devices), number)
    places = [devices[index] for index in schedule.device_of_stage]
    pipeline = make_stages(chain, places, balance.sizes)
    place_module(module, pipeline.stages)
    table = make_stage_table(pipeline, balance, schedule, reason, plan, [None] * len(places))
    unused = len(layout.devices) - len(devices)
    if unused:
        name_of_module = type(module).__name__
        why = (
            f"{name_of_module} has {format_count(len(blocks), 'block')}"
            if len(blocks) < per_device * len(layout.devices)
            else "the slowest stage would take as long with more"
        )
        left_out = f"{format_count(unused, 'device')} of the rig left out, as {why}"
        layout = replace(layout, reason=f"{layout.reason}; {left_out}")
    layout = replace(
        layout,
        devices=devices,
        output_device=places[-1] if output_device is None else resolve_device(output_device),
        pipeline=table,
    )
    return SpreadModule(PipelineEngine(module, layout, loss, plan, micro_batches, pipeline))


def _balance(
    module: torch.nn.Module,
    chain: Chain,
    devices: Sequence[Device],
    schedule: str,
    stages_per_device: int,
    micro_batches: int,
    plan: Pipeline,
    layout: Layout,
) -> Balance:
    work, obstacle = count_work_of_example(chain, plan, micro_batches, layout.dim)
    if work is not None and plan.checkpoint != "never":
        work = [replace(one, activation_bytes=0) for one in work]
    dtype = dtype_of(module, layout.precision)
    balance = balance_blocks(
        chain, devices, stages_per_device, schedule, micro_batches, work, dtype
    )
    return replace(balance, reason=balance.reason + obstacle)
