"""Spread a module over the devices of one process."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..devices.rig import Rig
from ..errors import SpreadError
from .accumulation import check_accumulate
from .asked import Asked
from .choose_plan import choose_plan
from .engines.exact.spread import spread_exactly
from .engines.replicas.batch_norm import synchronize_batch_norm
from .engines.replicas.engine import ReplicaEngine
from .engines.replicas.replicas import check_place
from .layout import Layout, make_layout
from .module_devices import device_types_of, devices_of
from .own_class import move_module, require_frozen
from .plans import Exact, Pipeline, Plan, Replicas, Shards, with_example
from .precision import read_precision
from .spread_module import SpreadModule


def spread_in_process(
    module: torch.nn.Module, rig: Rig | None, plan: Plan | None, asked: Asked
) -> SpreadModule:
    """Return a module spread over a rig; see `anyrig.spread`."""
    rig = _with_lead(Rig.detect(), module) if rig is None else rig
    if isinstance(plan, Replicas) and plan.processes is not False:
        from .engines.processes.spread import spread_over_processes

        return spread_over_processes(module, rig, plan, asked)
    why = asked.plan_reason
    is_chosen = plan is None
    if plan is None:
        totals = [device.total_bytes for device in rig if device.kind != "cpu"]
        other = Pipeline() if len(rig) > 1 else None
        plan, chosen = choose_plan(module, totals, otherwise=other)
        why += chosen
    plan = with_example(plan, asked.example)
    if isinstance(plan, Shards) and len(rig) > 1:
        raise SpreadError(
            f"parameters are divided among processes, but this process uses {len(rig)} devices "
            "alone; start the script with anyrig run, which starts a process for each device"
        )
    if len(rig) > 1 and not isinstance(plan, Pipeline):
        require_frozen(module)
    layout = replace(
        make_layout(rig, plan, asked.output_device, asked.dim),
        precision=read_precision(asked.precision, [device.torch_device for device in rig]),
        accumulate=check_accumulate(asked.accumulate, asked.loss),
    )
    layout = replace(layout, reason=f"{why}{layout.reason}", is_chosen=is_chosen)
    if isinstance(plan, Pipeline):
        return _in_stages(module, rig, plan, asked, layout)
    if isinstance(plan, Replicas) and plan.sync_batch_norm:
        module = synchronize_batch_norm(module)
    _place(module, rig)
    if isinstance(plan, Exact):
        return spread_exactly(module, layout, asked.loss, plan)
    return SpreadModule(ReplicaEngine(module, layout, asked.loss))


def _in_stages(
    module: torch.nn.Module, rig: Rig, plan: Pipeline, asked: Asked, layout: Layout
) -> SpreadModule:
    from .engines.pipeline.chosen_schedule import check_names
    from .engines.pipeline.one_device import require_room

    if plan.replicas != 1:
        raise SpreadError(
            f"Pipeline(replicas={plan.replicas!r}) is the number of pipelines in a process group, "
            "but one process has one pipeline"
        )
    if len(rig) > 1:
        from .engines.pipeline.spread_pipeline import (
            spread_pipeline,  # torch.fx takes long to import
        )

        return spread_pipeline(module, layout, asked.loss, plan, asked.output_device, rig.devices)
    check_names(plan, module, asked.loss, layout.precision)
    require_room(module, rig.lead)
    reason = f"{layout.reason}; a pipeline has one stage there, and uses no micro-batches"
    _place(module, rig)
    return SpreadModule(ReplicaEngine(module, replace(layout, reason=reason), asked.loss))


def _place(module: torch.nn.Module, rig: Rig) -> None:
    """Have the module on the lead."""
    lead = rig.lead.torch_device
    if len(rig) == 1 or device_types_of(module) <= {"cpu"}:
        move_module(module, lead)
    check_place(module, lead)


def _with_lead(rig: Rig, module: torch.nn.Module) -> Rig:
    """Return the rig with the module's device first, if the rig has that device."""
    here = devices_of(module)
    first = [device for device in rig if {device.torch_device} == here]
    if not first or first[0] == rig.lead:
        return rig
    rest = [device for device in rig if device not in first]
    return Rig((*first, *rest), f"the lead is {first[0].text}, which has the module; {rig.reason}")
