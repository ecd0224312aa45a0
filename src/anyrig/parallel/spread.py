"""One line that puts a module onto every device of a rig."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..devices.place import Place, Places, as_rig
from ..devices.rig import Rig
from ..errors import SpreadError
from ..processes.group.membership import Group, join_group
from .accumulation import check_accumulate
from .data_parallel import DataParallel
from .ddp_options import check_ddp_options
from .distributed import DistributedModule
from .layout import Layout, make_layout
from .losses.loss import Criterion
from .losses.mistakes import require_criterion
from .precision import read_precision
from .rank_module import RankModule
from .replicas.batch_norm import synchronize_batch_norm
from .replicas.replicas import check_place
from .replicas.transparent import require_plain_module
from .shares.shares import Shares

if TYPE_CHECKING:
    from .sharded import Sharding

HOW = ("auto", "replicate", "shard")


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
) -> DataParallel | RankModule:
    """Return `module` spread over the devices of a rig; call it as you would call the module.

    ::

        model = anyrig.spread(Net(), loss=nn.CrossEntropyLoss())
        for x, y in loader:
            loss = model(x, target=y)       # of the whole batch; model(x) returns the outputs
            loss.backward()                 # all devices
            optimizer.step(); optimizer.zero_grad()

    The module itself is used on the first device, the lead; a module on the CPU is moved there, in
    place, as `torch.nn.Module.to` does. On a rig of one device it is called as it is. See
    `DataParallel` for what the result does, and `explain` for how it was spread and why.

    In a rank of `anyrig run` or torchrun, or wherever there is a process group, the module is
    spread over the group instead: every rank calls this, has one device, and gives the model its
    own rows. See `DistributedModule` and `ShardedModule`.

    Args:
        module: any module; its parameters stay the ones to optimize.
        rig: by default every working accelerator, the one that has the module first; in a rank its
            own device.
        how: ``"replicate"``: the whole module on each device, and a share of each batch; ``"auto"``
            is the same. ``"shard"``: a part of every parameter on each rank of a process group;
            on a single device there is nothing to divide, and the module is called as it is.
        shares: how much of a batch each device gets: ``"even"``; ``"speed"``: from published
            rates, corrected by the times of the first steps, then held; ``"memory"``: so that all
            are equally full, by the peaks of the first steps; or one number a device. By default
            even on equal devices, and by published rates on unequal ones: nothing is measured.
        loss: a criterion ``loss(output, target)``, computed beside each replica's output when the
            model is called with ``target=``; outputs then never meet on one device. See
            `ParallelLoss` for which criterions are combined exactly.
        output_device: where outputs are gathered, by default the lead.
        dim: the dimension along which batches are divided.
        sync_batch_norm: let layers of batch normalization take their statistics from the whole
            batch, not from each device's rows; replaces these layers within the module. In a
            process group by `torch.nn.SyncBatchNorm`, on GPUs only.
        sharding: how parameters are divided with ``how="shard"``.
        ddp: in a process group, arguments for PyTorch's `DistributedDataParallel`:
            ``find_unused_parameters``, ``static_graph``, ``bucket_cap_mb``,
            ``gradient_as_bucket_view``. In one process they have no effect.
        precision: ``"bfloat16"`` or ``"float16"``: compute forward and `loss` under autocast in
            this dtype on every device and rank. Parameters, gradients and their reduction keep
            their dtype. With float16, scale the loss with a `torch.amp.GradScaler`.

        accumulate: let several backward passes before a step give the gradient of the mean over all
            their samples (or what `loss` divides by). Do not divide the loss by their number.

    Raises:
        SpreadError: `how` is unknown; or the module cannot be spread, is spread already, or lies
            elsewhere; or a rank was given several devices; or `loss` is a class; or a
            device does not compute in `precision`.
        SharesError: `shares` are no shares of these devices.
        LaunchError: the environment names a process group by half, or its ranks did not meet.
    """
    require_plain_module(module)
    if loss is not None:
        require_criterion(loss)
    rig = None if rig is None else as_rig(rig)
    if how not in HOW:
        raise SpreadError(
            f"how={how!r} is not among the ways to spread a module; take one of "
            f"{', '.join(map(repr, HOW))}"
        )
    if sharding is not None and how != "shard":
        raise SpreadError(f'sharding= is for how="shard", and how={how!r} was given')
    ddp_options = check_ddp_options(ddp or {})
    if ddp_options and how == "shard":
        raise SpreadError('ddp= is for how="replicate", and how="shard" was given; take sharding=')
    # What is refused below must not change the rank's device.
    group = join_group(rig if rig is not None and len(rig) == 1 else None)
    if group is not None:
        group = group if rig is not None else _on_device_of(module, group)
        if rig is not None and len(rig) > 1:
            raise SpreadError(
                f"each of {group.world_size} ranks drives one device, and this one was given "
                f"{len(rig)}: {rig}. Leave out the rig, or name the rank's own device; or start "
                "one process without a launcher, which drives them all"
            )
        if shares is not None or output_device is not None:
            raise SpreadError(
                "shares= and output_device= divide a batch within one process; here each rank "
                "gives the model its own rows, as anyrig.distribute(loader) deals them out"
            )
        layout = Layout(
            devices=(group.device,),
            how="shard" if how == "shard" else "replicate",
            reason="this process is one rank of a group",
            shares=Shares((1.0,), "each rank's own rows, and gradients weighted by their number"),
            output_device=group.device,
            dim=dim,
            group=group,
            precision=read_precision(precision, (group.device,)),
            accumulate=check_accumulate(accumulate, loss, how),
        )
        if sharding is not None and sharding.mixed_precision and precision is not None:
            raise SpreadError(
                "precision= computes under autocast with parameters as they are, and "
                "Sharding(mixed_precision=…) casts the parameters; take one of the two"
            )
        return _over_group(module, layout, group, loss, sync_batch_norm, sharding, ddp_options)
    rig = _with_lead(Rig.detect(), module) if rig is None else rig
    if how == "shard" and len(rig) > 1:
        raise SpreadError(
            f"parameters are divided among processes, and this one drives {len(rig)} devices "
            "alone; start the script with anyrig run, a process a device"
        )
    layout = replace(
        make_layout(rig, shares, output_device, dim),
        precision=read_precision(precision, [device.torch_device for device in rig]),
        accumulate=check_accumulate(accumulate, loss, "alone"),
    )
    lead = rig.lead.torch_device
    if sync_batch_norm:
        module = synchronize_batch_norm(module)
    if len(rig) == 1 or _lies_on_cpu(module):
        module.to(lead)
    check_place(module, lead)
    return DataParallel.with_layout(module, layout, loss)


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
                "sync_batch_norm= in a process group is torch.nn.SyncBatchNorm, which computes on "
                "GPUs only; leave it out on the CPU, or use one process"
            )
        module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    if layout.how == "shard":
        from .sharded import ShardedModule, Sharding, shard  # FSDP2 takes long to import

        sharding = sharding or Sharding()
        blocks = shard(module, group, sharding)
        if sharding.replicas > 1:
            shards = group.world_size // sharding.replicas
            reason = f"{layout.reason}; {sharding.replicas} replicas in {shards} shards each"
            layout = replace(layout, reason=reason)
        return ShardedModule(module, replace(layout, blocks=blocks), loss)
    if _lies_on_cpu(module):
        module.to(group.device)
    check_place(module, group.device)
    return DistributedModule(module, layout, loss, ddp_options)


def _on_device_of(module: torch.nn.Module, group: Group) -> Group:
    """Return the group with the accelerator that the script has put the module on, if it has."""
    devices = _devices_of(module)
    if len(devices) != 1 or devices & {torch.device("cpu"), torch.device("meta")}:
        return group
    return replace(group, device=devices.pop())


def _with_lead(rig: Rig, module: torch.nn.Module) -> Rig:
    """Return a rig of the same devices with the one first on which the module lies, if it does."""
    here = _devices_of(module)
    first = [device for device in rig if {device.torch_device} == here]
    if not first or first[0] == rig.lead:
        return rig
    rest = [device for device in rig if device not in first]
    return Rig((*first, *rest), f"{first[0].text} leads, where the module is; {rig.reason}")


def _lies_on_cpu(module: torch.nn.Module) -> bool:
    return _devices_of(module) <= {torch.device("cpu")}


def _devices_of(module: torch.nn.Module) -> set[torch.device]:
    return {tensor.device for tensor in (*module.parameters(), *module.buffers())}
