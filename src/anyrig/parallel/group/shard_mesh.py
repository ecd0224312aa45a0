"""The device mesh of a model in shards, which refuses to be pickled with a shard.

::

    model.state_dict()["weight"]   ┐
    optimizer.state_dict()         ├─ DTensor ── its shard of this rank
    copies, slices, .cpu()         ┘          └─ mesh ── pickled along, and raises

Pickling a `DTensor` silently saves only the shard of its rank. The mesh is pickled with every
`DTensor`, and with no other tensor, so refusing to pickle the mesh refuses exactly these. PyTorch's
distributed checkpoint saves shards without pickling a mesh.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.distributed.device_mesh import DeviceMesh

from ...errors import ShardSaveError, SpreadError
from ...processes.group.membership import Group
from ...processes.torch_faults import keep_until_exit


class ShardMesh(DeviceMesh):
    """A mesh of the ranks among which a model is divided. It cannot be pickled."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise ShardSaveError."""
        raise ShardSaveError(explain_saving(self.size(self.ndim - 1)))

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardMesh:
        """Return the mesh itself: copies of a state stay on its ranks."""
        return self


def make_mesh(group: Group, replicas: int) -> ShardMesh:
    """Return the mesh of all ranks, with a first dimension of replicas if there are several.

    Every rank must call this. With several replicas it creates process groups. Raise SpreadError if
    the ranks cannot be divided into so many replicas of equal size.
    """
    ranks = torch.arange(group.world_size)
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise SpreadError(f"Sharding(replicas={replicas!r}) must be an integer from 1 up")
    if replicas == 1:
        return ShardMesh(group.device.type, ranks)
    if group.world_size % replicas or replicas == group.world_size:
        raise SpreadError(
            f"Sharding(replicas={replicas}) does not divide {group.world_size} ranks into replicas "
            "of two ranks or more, all of one size; take another number, or for a whole model on "
            'each rank how="replicate"'
        )
    mesh = ShardMesh(
        group.device.type, ranks.reshape(replicas, -1), mesh_dim_names=("replicate", "shard")
    )
    for dimension in range(mesh.ndim):
        keep_until_exit(mesh.get_group(dimension))
    return mesh


def explain_saving(world_size: int) -> str:
    """Return why one rank cannot save a model in shards, and how to save it."""
    return (
        f'spread(how="shard") has divided this model among {world_size} ranks, so saving it or its '
        "optimizer's state here would keep this rank's shards only, and lose the others'. "
        "anyrig.save(folder, model=model, optimizer=optimizer) on every rank saves the whole. With "
        "PyTorch's functions, on every rank: from torch.distributed.checkpoint.state_dict import "
        "get_model_state_dict, get_optimizer_state_dict, StateDictOptions; "
        "state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
        "cpu_offload=True)); then torch.save(state, path) on rank 0. An optimizer likewise: "
        "get_optimizer_state_dict(model, optimizer, options=…). Or each rank its own shards: "
        'torch.distributed.checkpoint.save({"model": get_model_state_dict(model)}, '
        "checkpoint_id=folder)"
    )
