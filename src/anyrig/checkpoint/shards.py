"""Tensors in shards (`DTensor`): gathered on the host for a save, divided again after a load."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere
from .region import Region, whole_region
from .tensor_in_parts import SavedTensor, TensorInParts


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a `DTensor`, of which this rank has a part."""
    return hasattr(tensor, "full_tensor")


def is_elsewhere(value: object) -> bool:
    """Return whether a value stands for a tensor that another rank of a pipeline has."""
    return isinstance(value, Elsewhere)


def has_one_region(tensor: Any) -> bool:
    """Return whether the part of each rank is one region of the whole tensor.

    The shards of FSDP2 on top of tensor parallelism along the same dimension are not.
    """
    from torch.distributed.tensor import Replicate, Shard

    return all(type(each) in (Replicate, Shard) for each in tensor.placements)


def region_of(tensor: Any) -> Region:
    """Return which elements of a whole tensor this rank has; `has_one_region` must be true."""
    # The protocol of torch.distributed.checkpoint. `DTensor` has no public method for this.
    (chunk,) = tensor.__create_chunk_list__()
    return Region(tuple(chunk.offsets), tuple(chunk.sizes))


def local_part(tensor: Any) -> Tensor:
    """Return this rank's part of a tensor in shards, in the same memory."""
    part: Tensor = tensor.to_local().detach()
    return part


def whole_on_host(tensor: Tensor) -> Tensor:
    """Return a whole tensor in the host's memory; the same memory if it is there already.

    Every rank must call this function for the same tensors in shards, in the same order. Each rank
    gathers the whole tensor on its device.
    """
    return whole_on_device(tensor).cpu()


def whole_on_device(tensor: Tensor) -> Tensor:
    """Return a whole tensor on its device; see `whole_on_host`."""
    if is_sharded(tensor):
        sharded: Any = tensor
        tensor = sharded.full_tensor()
    return tensor.detach().resolve_conj().resolve_neg()


def divided_like(saved: SavedTensor, target: Tensor) -> Tensor:
    """Return a saved tensor in the layout of `target`: on its device, and sharded if `target` is.

    The ranks do not communicate: each reads its own part. The result may be the saved tensor.
    """
    if not is_sharded(target):
        if isinstance(saved, Tensor):
            return saved.to(target.device)
        return read_into(saved, torch.empty(saved.shape, dtype=saved.dtype, device=target.device))
    from torch.distributed.tensor import DTensor, distribute_tensor

    sharded: Any = target
    mesh, placements = sharded.device_mesh, sharded.placements
    device = sharded.to_local().device
    if not has_one_region(sharded):
        whole = saved.whole() if isinstance(saved, TensorInParts) else saved
        return distribute_tensor(whole.to(device), mesh, placements, src_data_rank=None)
    region = region_of(sharded)
    if isinstance(saved, Tensor):
        own = saved[region.slices_in(whole_region(saved.shape))].to(device)
    else:
        own = torch.empty(region.sizes, dtype=saved.dtype, device=device)
        saved.read_into(own, region.start)
    return DTensor.from_local(
        own,
        mesh,
        placements,
        run_check=False,
        shape=target.shape,
        stride=target.stride(),
    )


def replicated_like(whole: Tensor, target: Tensor) -> Tensor:
    """Return a tensor that every rank has, for computations with `target`, which is in shards."""
    from torch.distributed.tensor import DTensor, Replicate

    sharded: Any = target
    mesh, device = sharded.device_mesh, sharded.to_local().device
    return DTensor.from_local(whole.to(device), mesh, [Replicate()] * mesh.ndim, run_check=False)


def read_into(saved: TensorInParts, target: Tensor) -> Tensor:
    """Copy a saved tensor into the memory of `target`, which may be in shards; return `target`."""
    if not is_sharded(target):
        return saved.read_into(target, whole_region(saved.shape).start)
    if has_one_region(target):
        saved.read_into(local_part(target), region_of(target).start)
        return target
    return target.copy_(divided_like(saved, target))
