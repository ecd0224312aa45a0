"""Spread a module over the devices of a rig, or over the ranks of a process group."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..devices.place import Place, Places, as_rig
from ..devices.rig import Rig
from ..errors import SpreadError
from ..private_names import refuse_missing
from ..processes.group.membership import Group, join_group
from ..processes.nccl_class import SECOND, class_of_nccl
from .accumulation import check_accumulate
from .data_parallel import DataParallel
from .distributed import DistributedModule, check_ddp_options
from .exact.module import ExactModule
from .exact.spread import check_exact_options, spread_exactly
from .group.own_class_on_ranks import require_same_kinds
from .layout import Layout, make_layout
from .losses.loss import Criterion
from .losses.mistakes import require_criterion
from .own_class import move_module, refuse_own_class, require_frozen
from .precision import read_precision
from .rank_module import RankModule
from .replicas.batch_norm import synchronize_batch_norm
from .replicas.replicas import check_place
from .replicas.transparent import require_plain_module
from .shares.shares import Shares

if TYPE_CHECKING:
    from .pipeline.over_ranks.pipeline_rank import PipelineRank
    from .pipeline.pipeline_module import PipelineModule
    from .sharded import Sharding

HOW = ("auto", "replicate", "shard", "pipeline", "split")
IN_STAGES = ("pipeline", "split")
_CPU = torch.device("cpu")


def spread(
    module: torch.nn.Module,
    rig: Places | None = None,
    *,
    how: str = "auto",
    shares: str | Sequence[float] | Shares | None = None,
    loss: Criterion | None = None,
    output_device: Place | None = None,
    dim: int = 0,
    sync_batch_norm: bool = False,
    sharding: Sharding | None = None,
    ddp: Mapping[str, Any] | None = None,
    precision: str | torch.dtype | None = None,
    accumulate: bool = False,
    micro_batches: int | str = "auto",
    schedule: str = "auto",
    checkpoint: str = "never",
    split_points: Sequence[str] | None = None,
    example: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None,
    replicas: int = 1,
    logical_shards: int | None = None,
) -> DataParallel | RankModule | PipelineModule | PipelineRank | ExactModule:
    """Return `module` spread over the devices of a rig; call it as you would call the module.

    ::

        model = anyrig.spread(Net(), loss=nn.CrossEntropyLoss())
        for x, y in loader:
            loss = model(x, target=y)       # of the whole batch; model(x) returns the outputs
            loss.backward()                 # on all devices
            optimizer.step(); optimizer.zero_grad()

    The lead (the first device) computes with the module itself; a module on the CPU is moved there
    in place, as `torch.nn.Module.to` does. On a rig of one device the module is called unchanged.
    `explain` returns how a model was spread, and why.

    In a rank of `anyrig run` or torchrun, or in any process group, the module is spread over the
    group instead: every rank calls `spread`, uses one device, and calls the model with its own
    samples. See `DistributedModule` and `ShardedModule`; in one process, `DataParallel`.

    Args:
        module: any module; optimize its own parameters.
        rig: by default every working accelerator, beginning with the module's own; in a rank, the
            rank's device.
        how: ``"replicate"``: the whole module on each device, and a part of each batch; ``"auto"``
            is the same. ``"shard"``: a part of every parameter on each rank of a process group;
            on a single device the module is called unchanged. ``"pipeline"``: neighbouring layers
            on each device or rank, for a module that is too large for one, and batches in
            micro-batches, so that the devices compute concurrently; see `PipelineModule`, and
            `PipelineRank` in a process group.
            ``"split"``: the same with the whole batch: one device computes at a time.
        shares: how much of a batch each device gets: ``"even"``; ``"speed"``: by published rates,
            corrected by the durations of the first steps and fixed afterwards; ``"memory"``:
            such that all devices are equally full, by the peaks of the first steps; or one number
            for each device. By default even on equal devices, and by published rates on unequal
            ones: nothing is measured.
        loss: a criterion ``loss(output, target)``, computed on the device of each replica's output
            when the model is called with ``target=``, so that outputs are not gathered. See
            `ParallelLoss` for the criterions that are combined exactly.
        output_device: where outputs are gathered; by default the lead.
        dim: the dimension along which batches are divided.
        sync_batch_norm: compute the statistics of batch normalization from the whole batch instead
            of each device's samples; replaces these layers in the module. In a process group the
            new layers are `torch.nn.SyncBatchNorm`, on GPUs only.
        sharding: how parameters are divided with ``how="shard"``.
        ddp: in a process group, arguments for PyTorch's `DistributedDataParallel`:
            ``find_unused_parameters``, ``bucket_cap_mb``, ``gradient_as_bucket_view``. In one
            process they have no effect.
        precision: ``"bfloat16"`` or ``"float16"``: compute forward and `loss` under autocast in
            this dtype on every device and rank. Parameters, gradients and their reduction keep
            their dtype. With float16, scale the loss with a `torch.amp.GradScaler`.
        accumulate: make several backward passes before a step give the gradient of the mean over
            all their samples (or over what `loss` divides by). Do not divide the loss yourself.
        micro_batches: into how many parts a pipeline cuts each batch; ``"auto"``: the fastest
            number by counted work if `example` shows the batch, else four for each device, and one
            if a layer needs the whole batch, such as batch normalization.
        schedule: the order in which a pipeline computes: ``"gpipe"``, ``"1f1b"``,
            ``"interleaved"``, ``"zero-bubble"``, ``"zero-bubble-h2"``, ``"zero-bubble-few"`` or
            ``"zero-bubble-v"``. All but gpipe need `loss`. ``"auto"``:
            zero-bubble-few over ranks on CPUs, and 1f1b elsewhere, if possible; else gpipe.
        checkpoint: whether a pipeline computes activations again in the backward pass instead of
            keeping them: ``"never"``, for each micro-batch but the last (``"except_last"``), or
            ``"always"``.
        split_points: the names of submodules at which a pipeline may begin a new stage; by default
            all places that few values cross.
        example: (args, kwargs) of a call, for a pipeline. Arguments that are None, bools or strings
            decide which code of the module runs; by default they have their defaults.
        replicas: in a process group, the number of pipelines, each of neighbouring ranks, that
            share the global batch. Gradients are those of all samples.
        logical_shards: the number of parts in which each global batch is computed, such as 12, so
            that results have the same bits on any number of ranks that divides it. Needs `loss`
            and ``distribute(loader, logical_shards=…)``. `explain` says what it costs.

    Raises:
        SpreadError: `how` is unknown; the module cannot be spread, is spread already, or is on
            another device; a rank was given several devices; `loss` is a class; a device does not
            compute in `precision`; or two arguments exclude each other.
        SharesError: `shares` do not fit these devices.
        LaunchError: the environment describes a process group incompletely, or its ranks did not
            meet.
    """
    refuse_missing("parallel")
    require_plain_module(module)
    if loss is not None:
        require_criterion(loss)
    rig = None if rig is None else as_rig(rig)
    if how not in HOW:
        raise SpreadError(
            f"how={how!r} is not a way to spread a module; use one of {', '.join(map(repr, HOW))}"
        )
    if sharding is not None and how != "shard":
        raise SpreadError(f'sharding= is for how="shard", but how={how!r} was given')
    options = (micro_batches, schedule, checkpoint, split_points, example)
    if how not in IN_STAGES and options != ("auto", "auto", "never", None, None):
        raise SpreadError(
            "micro_batches=, schedule=, checkpoint=, split_points= and example= are for "
            f'how="pipeline", but how={how!r} was given'
        )
    if how in IN_STAGES and (shares is not None or sync_batch_norm):
        raise SpreadError(
            f"shares= and sync_batch_norm= divide batches among devices, but how={how!r} "
            "divides layers, and every device computes all samples; leave them out"
        )
    ddp_options = check_ddp_options(ddp or {})
    if logical_shards is not None and how in IN_STAGES:
        raise SpreadError(
            f"logical_shards= gives the same bits to replicas and shards, but how={how!r} was "
            "given; leave one of them out"
        )
    if logical_shards is not None:
        check_exact_options(
            loss,
            sync_batch_norm=sync_batch_norm,
            accumulate=accumulate,
            ddp=ddp_options,
            precision=precision,
            sharding=sharding,
        )
    if ddp_options and how == "shard":
        raise SpreadError('ddp= is for how="replicate", but how="shard" was given; use sharding=')
    # A call that is refused below must not change the rank's device.
    group = join_group(rig if rig is not None and len(rig) == 1 else None)
    if replicas != 1 and (group is None or how not in IN_STAGES):
        raise SpreadError(
            f"replicas={replicas!r} is the number of pipelines in a process group, with "
            f'how="pipeline"; this call has how={how!r}'
            + ("" if group is not None else " and runs in one process, which has one pipeline")
        )
    if group is not None:
        _check_own_class(module, how, group)
        here = _devices_of(module)
        if rig is None and len(here) == 1 and not here <= {_CPU, torch.device("meta")}:
            group = replace(group, device=here.pop())  # the accelerator that has the module
            _check_gpu_of_group(group.device)
        if rig is not None and len(rig) > 1:
            raise SpreadError(
                f"each of {group.world_size} ranks uses one device, but this rank was given "
                f"{len(rig)}: {rig}. Leave out the rig, or name the rank's own device; or start "
                "one process without a launcher, which uses all devices"
            )
        if shares is not None or output_device is not None:
            raise SpreadError(
                "shares= and output_device= are for one process; in a process group each rank "
                "calls the model with its own samples, as from anyrig.distribute(loader)"
            )
        layout = Layout(
            devices=(group.device,),
            how=how if how in ("shard", *IN_STAGES) else "replicate",
            reason="this process is one rank of a group",
            shares=Shares(
                (1.0,), "each rank's own samples, and gradients weighted by their number"
            ),
            output_device=group.device,
            dim=dim,
            group=group,
            precision=read_precision(precision, (group.device,)),
            accumulate=check_accumulate(accumulate, loss, how),
        )
        if how in IN_STAGES:
            from .pipeline.options import PipelineOptions
            from .pipeline.over_ranks.spread_over_ranks import spread_over_ranks

            called = "each rank of a pipeline is called with the same samples"
            layout = replace(layout, shares=Shares((1.0,), called))
            pipeline = PipelineOptions(*options)
            return spread_over_ranks(module, layout, group, loss, pipeline, replicas)
        if sharding is not None and sharding.mixed_precision and precision is not None:
            raise SpreadError(
                "precision= computes under autocast and keeps the dtype of parameters, but "
                "Sharding(mixed_precision=…) casts the parameters; use one of the two"
            )
        if logical_shards is not None:
            return spread_exactly(module, layout, loss, logical_shards, sharding)
        return _over_group(module, layout, group, loss, sync_batch_norm, sharding, ddp_options)
    rig = _with_lead(Rig.detect(), module) if rig is None else rig
    if how == "shard" and len(rig) > 1:
        raise SpreadError(
            f"parameters are divided among processes, but this process uses {len(rig)} devices "
            "alone; start the script with anyrig run, which starts a process for each device"
        )
    if len(rig) > 1 and how not in IN_STAGES:
        require_frozen(module)
    layout = replace(
        make_layout(rig, shares, output_device, dim),
        precision=read_precision(precision, [device.torch_device for device in rig]),
        accumulate=check_accumulate(accumulate, loss, "alone"),
    )
    lead = rig.lead.torch_device
    if how in IN_STAGES:
        from .pipeline.one_device import require_room
        from .pipeline.options import PipelineOptions, check_options

        pipeline = PipelineOptions(*options)
        if len(rig) > 1:
            # torch.fx takes long to import
            from .pipeline.spread_pipeline import spread_pipeline

            shares = Shares((1.0,) * len(rig), "all samples on each")
            layout = replace(layout, how=how, shares=shares)
            return spread_pipeline(module, layout, loss, pipeline, output_device, rig.devices)
        check_options(pipeline, how, module, loss, layout.precision)
        require_room(module, rig.lead)
        reason = f"{layout.reason}; how={how!r} has one stage there, and uses no micro-batches"
        layout = replace(layout, reason=reason)
    if sync_batch_norm:
        module = synchronize_batch_norm(module)
    if len(rig) == 1 or _devices_of(module) <= {_CPU}:
        move_module(module, lead)
    check_place(module, lead)
    if logical_shards is not None:
        return spread_exactly(module, layout, loss, logical_shards)
    return DataParallel.with_layout(module, layout, loss)


def _check_own_class(module: torch.nn.Module, how: str, group: Group) -> None:
    """Refuse tensors of a class of their own, such as quantised weights, if ranks lose a part."""
    if how == "shard":
        refuse_own_class(module, 'how="shard"')
    elif how in IN_STAGES:
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


def _over_group(
    module: torch.nn.Module,
    layout: Layout,
    group: Group,
    loss: Criterion | None,
    sync_batch_norm: bool,
    sharding: Sharding | None,
    ddp_options: dict[str, Any],
) -> RankModule:
    if sync_batch_norm:
        if group.device.type == "cpu":
            raise SpreadError(
                "in a process group, sync_batch_norm= uses torch.nn.SyncBatchNorm, which computes "
                "on GPUs only; leave it out on the CPU, or use one process"
            )
        module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    if layout.how == "shard":
        from .sharded import ShardedModule, Sharding, shard  # FSDP2 takes long to import

        sharding = sharding or Sharding()
        blocks = shard(module, group, sharding)
        if sharding.replicas > 1:
            shards = group.world_size // sharding.replicas
            reason = f"{layout.reason}; {sharding.replicas} replicas of {shards} shards each"
            layout = replace(layout, reason=reason)
        return ShardedModule(module, replace(layout, blocks=blocks), loss)
    if _devices_of(module) <= {_CPU}:
        move_module(module, group.device)
    check_place(module, group.device)
    return DistributedModule(module, layout, loss, ddp_options)


def _with_lead(rig: Rig, module: torch.nn.Module) -> Rig:
    """Return the rig with the module's device first, if the rig has that device."""
    here = _devices_of(module)
    first = [device for device in rig if {device.torch_device} == here]
    if not first or first[0] == rig.lead:
        return rig
    rest = [device for device in rig if device not in first]
    return Rig((*first, *rest), f"the lead is {first[0].text}, which has the module; {rig.reason}")


def _devices_of(module: torch.nn.Module) -> set[torch.device]:
    return {tensor.device for tensor in (*module.parameters(), *module.buffers())}
