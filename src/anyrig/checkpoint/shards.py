"""Tensors in shards (`DTensor`): whole on the host for a save, and back in shards after a load."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..parallel.pipeline.over_ranks.elsewhere import Elsewhere


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a `DTensor`, of which this rank has a part."""
    return hasattr(tensor, "full_tensor")


def is_elsewhere(value: object) -> bool:
    """Return whether a value stands for a tensor that another rank of a pipeline has."""
    return isinstance(value, Elsewhere)


def whole_on_host(tensor: Tensor) -> Tensor:
    """Return a whole tensor in the host's memory; the same memory if it is there already.

    Every rank must call this for a tensor in shards, in the same order of tensors. Each gathers the
    whole tensor on its device.
    """
    return whole_on_device(tensor).cpu()


def whole_on_device(tensor: Tensor) -> Tensor:
    """Return a whole tensor on its device; see `whole_on_host`."""
    if is_sharded(tensor):
        sharded: Any = tensor
        tensor = sharded.full_tensor()
    return tensor.detach().resolve_conj().resolve_neg()


def divided_like(whole: Tensor, target: Tensor) -> Tensor:
    """Return `whole` as `target` is: on its device, and in shards if it is.

    The ranks do not communicate: each has the whole tensor, perhaps mapped from a file, and copies
    its part.
    """
    if not is_sharded(target):
        return whole.to(target.device)
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    sharded: Any = target
    mesh, placements = sharded.device_mesh, sharded.placements
    device = sharded.to_local().device
    divided = [dim for dim, each in enumerate(placements) if not each.is_replicate()]
    if len(divided) != 1 or type(placements[divided[0]]) is not Shard:
        return distribute_tensor(whole.to(device), mesh, placements, src_data_rank=None)
    (mesh_dim,) = divided
    dim = placements[mesh_dim].dim
    parts = whole.chunk(mesh.size(mesh_dim), dim)  # as a `DTensor` is divided
    index = mesh.get_local_rank(mesh_dim)
    own = parts[index] if index < len(parts) else whole.narrow(dim, 0, 0)
    return DTensor.from_local(
        own.to(device),
        mesh,
        placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )
