"""Dividing a module into stages over a rig: ``how="pipeline"`` and ``how="split"`` of `spread`."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...devices.place import Place
from ...errors import SpreadError
from ...transfer.move import resolve_device
from ...units import format_count
from ..layout import Layout
from ..losses.loss import Criterion
from .balance import cut_evenly
from .chain import Block
from .micro_batches import choose_micro_batches
from .options import PipelineOptions, choose_schedule
from .pipeline_module import PipelineModule
from .placement import make_stages, place_module
from .plan import PipelinePlan, StagePlan
from .schedules.named import make_schedule
from .slots import list_slots, tensors_in
from .split.chain_of import chain_of


def spread_pipeline(
    module: torch.nn.Module,
    layout: Layout,
    loss: Criterion | None,
    options: PipelineOptions,
    output_device: Place | None,
) -> PipelineModule:
    """Return a module in stages on the devices of `layout`; move its parts there.

    Outputs are joined on the device of the last stage unless `output_device` is given.

    Raises:
        SpreadError: the module cannot be divided, or the options do not fit.
    """
    name, reason = choose_schedule(options, layout.how, module, loss, layout.precision)
    chain = chain_of(module, options.split_points, example=options.example)
    blocks, devices = chain.blocks, layout.devices
    per_device = 2 if name in ("interleaved", "zero-bubble-v") else 1
    if len(blocks) < per_device * len(devices):
        if per_device * 2 > len(blocks):
            raise SpreadError(
                f"{type(module).__name__} has {format_count(len(blocks), 'block')} that can be "
                f"on different devices, and schedule={name!r} on two devices needs "
                f'{2 * per_device}; use how="replicate", or divide the module into more layers'
            )
        devices = devices[: len(blocks) // per_device]
    micro_batches = choose_micro_batches(options.micro_batches, len(devices), layout.how)
    schedule = make_schedule(name, len(devices), micro_batches.number)
    places = [devices[index] for index in schedule.device_of_stage]
    sizes = cut_evenly([1 + _bytes_of([block]) for block in blocks], len(places))
    pipeline = make_stages(chain, places, sizes)
    place_module(module, pipeline.stages)
    plan = PipelinePlan(
        stages=tuple(
            StagePlan(stage.device, tuple(b.name for b in stage.blocks), _bytes_of(stage.blocks))
            for stage in pipeline.stages
        ),
        balance="such that the stage with the most bytes of parameters has the fewest",
        schedule=schedule,
        schedule_reason=reason,
        micro_batches="",
        checkpoint=options.checkpoint,
    )
    unused = len(layout.devices) - len(devices)
    if unused:
        layout = replace(
            layout,
            reason=f"{layout.reason}; {format_count(unused, 'device')} of the rig left out, as "
            f"{type(module).__name__} has {format_count(len(blocks), 'block')}",
        )
    layout = replace(
        layout,
        devices=devices,
        output_device=places[-1] if output_device is None else resolve_device(output_device),
        pipeline=plan,
    )
    return PipelineModule(module, layout, loss, options, micro_batches, pipeline)


def _bytes_of(blocks: tuple[Block, ...] | list[Block]) -> int:
    slots = list_slots(block.module for block in blocks)
    tensors = {id(tensor): tensor for _, tensor in tensors_in(slots)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
