"""Spread a module over the ranks of a process group."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from ..devices.rig import Rig
from ..errors import SpreadError
from ..processes.group.membership import Group
from ..processes.nccl_class import SECOND, class_of_nccl
from ..processes.time_limit import limit_or_default
from .accumulation import check_accumulate
from .asked import Asked
from .choose_plan import choose_plan
from .engines.ddp import DdpEngine
from .engines.exact.spread import spread_exactly
from .engines.replicas.replicas import check_place
from .layout import Layout
from .module_devices import device_types_of, devices_of
from .own_class import move_module, refuse_own_class, require_frozen
from .plans import Exact, Pipeline, Plan, Replicas, Shards, with_example
from .precision import read_precision
from .ranks.devices_of_ranks import devices_of_ranks
from .ranks.own_class_on_ranks import require_same_kinds
from .shares.shares import Shares
from .spread_module import SpreadModule

_OWN_SAMPLES = "each rank's own samples, and gradients weighted by their number"
_SAME_SAMPLES = "each rank of a pipeline is called with the same samples"


def spread_over_group(
    module: torch.nn.Module, rig: Rig | None, plan: Plan | None, asked: Asked, group: Group
) -> SpreadModule:
    """Return a module spread over the ranks; see `anyrig.spread`. Every rank must call this."""
    if rig is not None and len(rig) > 1:
        raise SpreadError(
            f"each of {group.world_size} ranks uses one device, but this rank was given "
            f"{len(rig)}: {rig}. Leave out the rig, or name the rank's own device; or start "
            "one process without a launcher, which uses all devices"
        )
    if asked.output_device is not None:
        raise SpreadError(
            "output_device= is for one process; in a process group each rank has the outputs of "
            "its own samples, as from anyrig.distribute(loader, model)"
        )
    if isinstance(plan, Replicas) and plan.processes is not False:
        raise SpreadError(
            f"processes={plan.processes} starts processes from a script without a launcher, but "
            f"this process is a rank of {group.world_size}, each a process already; leave it out"
        )
    here = devices_of(module)
    if rig is None and len(here) == 1 and not device_types_of(module) <= {"cpu", "meta"}:
        group = replace(group, device=here.pop())  # the accelerator that has the module
        _check_gpu_of_group(group.device)
    why = asked.plan_reason
    if plan is None:
        plan, chosen = choose_plan(module, _bytes_of_ranks(group), otherwise=Shards())
        why += chosen
    plan = with_example(plan, asked.example)
    within = plan.within if isinstance(plan, Exact) else plan
    _check_own_class(module, within, group)
    in_stages = isinstance(plan, Pipeline)
    layout = Layout(
        devices=(group.device,),
        plan=plan,
        reason=f"{why}this process is one rank of a group",
        shares=Shares((1.0,), _SAME_SAMPLES if in_stages else _OWN_SAMPLES),
        output_device=group.device,
        dim=asked.dim,
        group=group,
        precision=read_precision(asked.precision, (group.device,)),
        accumulate=check_accumulate(asked.accumulate, asked.loss),
    )
    if isinstance(plan, Pipeline):
        from .engines.pipeline.over_ranks.spread_over_ranks import spread_over_ranks

        return spread_over_ranks(module, layout, group, asked.loss, plan)
    if isinstance(plan, Exact):
        return spread_exactly(module, layout, asked.loss, plan)
    if isinstance(plan, Shards):
        return _in_shards(module, plan, asked, layout, group)
    return _in_replicas(module, plan, asked, layout, group)


def _in_shards(
    module: torch.nn.Module, plan: Shards, asked: Asked, layout: Layout, group: Group
) -> SpreadModule:
    from .engines.fsdp import FsdpEngine, shard  # FSDP2 takes long to import

    layout = replace(layout, blocks=shard(module, group, plan))
    if plan.replicas > 1:
        shards = group.world_size // plan.replicas
        reason = f"{layout.reason}; {plan.replicas} replicas of {shards} shards each"
        layout = replace(layout, reason=reason)
    return SpreadModule(FsdpEngine(module, layout, asked.loss))


def _in_replicas(
    module: torch.nn.Module, plan: Replicas, asked: Asked, layout: Layout, group: Group
) -> SpreadModule:
    if plan.sync_batch_norm:
        if group.device.type == "cpu":
            raise SpreadError(
                "in a process group, sync_batch_norm= uses torch.nn.SyncBatchNorm, which computes "
                "on GPUs only; leave it out on the CPU, or use one process"
            )
        module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    if device_types_of(module) <= {"cpu"}:
        move_module(module, group.device)
    check_place(module, group.device)
    return SpreadModule(DdpEngine(module, layout, asked.loss, dict(plan.ddp)))


def _bytes_of_ranks(group: Group) -> list[int | None]:
    """Return the memory of each rank's accelerator; None for a host, or where it is unknown."""
    rig = Rig.detect()
    own = next((each for each in rig if each.torch_device == group.device), rig.lead)
    of_ranks = devices_of_ranks(group, own, limit_or_default(None), "spread()")
    return [None if each.kind == "cpu" else each.total_bytes for each in of_ranks]


def _check_own_class(module: torch.nn.Module, plan: Plan, group: Group) -> None:
    """Refuse tensors of a custom class, such as quantised weights, if ranks lose a part."""
    if isinstance(plan, Shards):
        refuse_own_class(module, "Shards()")
    elif isinstance(plan, Pipeline):
        refuse_own_class(module, "a pipeline over ranks")
    else:
        require_frozen(module)
        require_same_kinds(module, group)


def _check_gpu_of_group(device: torch.device) -> None:
    """Refuse a module on a GPU whose tensors the process group does not take."""
    own = getattr(torch.distributed.group.WORLD, "bound_device_id", None)
    if own in (None, device) or class_of_nccl(torch.__version__, os.environ) != SECOND:
        return
    raise SpreadError(
        f"the module is on {device}, but this rank's process group takes tensors on {own} only: "
        f"so does {SECOND} of PyTorch {torch.__version__}. Move the module with "
        f"module.to({str(own)!r}), or create the group with "
        f"init_process_group(device_id=torch.device({str(device)!r}))"
    )
