"""Shards over ranks: PyTorch's FSDP2 divides the parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from traceback import extract_tb
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from ...errors import ShardSaveError, SpreadError
from ...processes.group.membership import Group
from ...processes.torch_faults import keep_until_exit
from ..plans import Shards
from ..ranks.fixed_parameters import FixedParameters
from ..ranks.optimizers import follow_optimizers
from ..ranks.run import Run
from ..ranks.shard_passes import ShardPasses
from ..ranks.shardable import require_shapes, require_shardable
from ..ranks.states import broadcast_states
from .rank_engine import RankEngine

# Repeated layers with a smaller part of all parameters are gathered with the whole module.
_LEAST_PART = 0.05

# FSDP2's functions that make the containers of arguments and outputs anew.
_MAKE_CONTAINERS = frozenset({"replace_grad_tensors", "to_map"})


class FsdpEngine(RankEngine):
    """Divides parameters, gradients and optimizer state among the ranks with PyTorch's FSDP2.

    The module itself is changed: its parameters become `DTensor`s, of which this rank has a part.
    Make the optimizer afterwards. `state_dict` returns this rank's shards, under names without a
    prefix, for `torch.distributed.checkpoint`. Pickling them raises `ShardSaveError`, because one
    rank would save only its part.
    """

    module: FSDPModule  # type: ignore[assignment]

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the module, as `RankEngine.forward` does; every rank must call this."""
        # FSDP2 leaves the root's parameters gathered after a forward without a backward pass, and
        # an optimizer's step changes the shards only: the next forward would use the old values.
        for layer in self.module.modules():  # type: ignore[attr-defined]
            if isinstance(layer, FSDPModule) and not torch.compiler.is_compiling():
                layer.reshard()
        return super().forward(inputs, kwargs)

    def _start(self) -> Run:
        run = super()._start()
        run.passes = ShardPasses(run.context, run.number, self.module)
        follow_optimizers(run.context)
        return run

    def fit_state(self, state: Mapping[str, Any], assign: bool) -> Mapping[str, Any]:
        """Return the state with this rank's shards; whole tensors must be alike on every rank."""
        self.finish_state()
        own = self.module.state_dict()  # type: ignore[attr-defined]
        shards = {}
        for name, value in state.items():
            shard = own.get(name)
            is_whole = isinstance(value, Tensor) and not isinstance(value, DTensor)
            if is_whole and isinstance(shard, DTensor):
                value = distribute_tensor(
                    value.detach().to(shard.device),
                    shard.device_mesh,
                    shard.placements,
                    src_data_rank=None,  # each rank takes its part of the value that it has
                )
            shards[name] = value
        return shards

    def _compute(self, *inputs: Any, **kwargs: Any) -> Any:
        try:
            return self.module(*inputs, **kwargs)  # type: ignore[operator]
        except TypeError as error:
            if _MAKE_CONTAINERS.isdisjoint(each.name for each in extract_tb(error.__traceback__)):
                raise
            raise SpreadError(
                "FSDP2 makes containers anew of what a module in shards gets and returns: to move "
                "their tensors to a GPU, and where tensors require gradients. It could not make "
                f"one ({error}). Use a dict, a tuple, or a dataclass of init fields; or spread "
                "with plan=Replicas()"
            ) from error

    def _call_method(
        self, method: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if method.__name__ not in vars(self.module):
            # FSDP2 gathers parameters for it, as for forward.
            register_fsdp_forward_method(self.module, method.__name__)  # type: ignore[arg-type]
        return super()._call_method(getattr(self.module, method.__name__), inputs, kwargs)

    def _has_collectives(self, run: Run) -> bool:
        return True  # each forward gathers parameters

    def _fix_parameters(self) -> FixedParameters:
        module: Any = self.module
        return FixedParameters(module, self._identify, may_unfreeze=True)

    def _identify(self) -> Callable[[torch.nn.Parameter], Any]:
        """Return a function that identifies parameters, whether FSDP2 has gathered them or not.

        A parameter that was frozen while it was gathered stays frozen when FSDP2 shards it again.
        """
        # FSDP2 replaces a shard by the whole parameter and back, and keeps both in private state.
        owner_of: dict[int, Any] = {}
        for layer in self.module.modules():  # type: ignore[attr-defined]
            if isinstance(layer, FSDPModule):
                group = layer._get_fsdp_state()._fsdp_param_group
                for held in group.fsdp_params if group is not None else ():
                    for form in ("sharded_param", "_unsharded_param"):
                        owner_of[id(getattr(held, form, None))] = held

        def identify(parameter: torch.nn.Parameter) -> Any:
            held = owner_of.get(id(parameter))
            if held is None:
                return parameter
            held.sharded_param.requires_grad_(parameter.requires_grad)
            return held

        return identify

    def join(self) -> NoReturn:
        """Raise SpreadError: a rank that ends early would not update its shard."""
        raise SpreadError(
            "each rank updates its own shard of the parameters, so none can end before the others; "
            "anyrig.distribute(loader) gives empty batches to a rank that has no further data"
        )

    def register_comm_hook(self, state: object, hook: object) -> NoReturn:
        """Raise SpreadError: only DDP has communication hooks."""
        raise SpreadError(
            "communication hooks are for replicas; to reduce gradients of shards in another dtype, "
            "use Shards(mixed_precision=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))"
        )

    def refuse_pickle(self) -> NoReturn:
        """Raise ShardSaveError: one rank would save only its shards."""
        raise ShardSaveError(explain_saving(dist.get_world_size()))

    def refuse_copy(self) -> NoReturn:
        """Raise SpreadError: FSDP2 cannot copy a module."""
        raise SpreadError("a model in shards cannot be copied; copy the module, then spread each")


def shard(module: torch.nn.Module, group: Group, plan: Shards) -> tuple[str, ...]:
    """Divide a module among the ranks, in place, and return the names of its blocks.

    Rank 0's parameters and buffers are broadcast to all ranks. Blocks are moved to the device one
    at a time, so a module on the CPU may be larger than a device's memory.

    The module has the same parameters on each rank; `group.device` gets the shards. Raise
    SpreadError if the ranks cannot be divided into that number of replicas, or if FSDP2 cannot
    divide the module.
    """
    require_shapes(module)
    blocks = find_blocks(module, plan.blocks)
    require_shardable(module, blocks.values())
    mesh = make_mesh(group, plan.replicas)
    states = [*module.parameters(), *module.buffers()]
    for kind in sorted({state.device.type for state in states} - {"meta"}):
        broadcast_states([state for state in states if state.device.type == kind], 0)
    options: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": plan.reshard_after_forward,
        "mp_policy": plan.mixed_precision or MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy() if plan.offload else OffloadPolicy(),
    }
    for block in blocks.values():
        fully_shard(block, **options)
    fully_shard(module, **options)
    return tuple(blocks)


def find_blocks(
    module: nn.Module, classes: Sequence[type[nn.Module]] | None = None
) -> dict[str, nn.Module]:
    """Return the blocks of a module by their names, in order.

    ::

        Model
        ├── embedding
        ├── layers: ModuleList        two or more layers of one class
        │   ├── 0: Layer   ◀ block
        │   └── 1: Layer   ◀ block    blocks are not searched for more blocks
        └── head

    The module itself is not a block. `classes` are those of the blocks; None takes layers of one
    class in one ModuleList or Sequential that together have at least a twentieth of the parameters.
    Layers that share parameters with other layers are left out: FSDP2 gathers a parameter once.
    """
    if classes is not None:
        chosen = tuple(classes)
        return {
            name: part
            for name, part in module.named_modules()
            if isinstance(part, chosen) and part is not module
        }
    owners = Counter(id(p) for part in module.modules() for p in set(part._parameters.values()))
    least = _LEAST_PART * sum(p.numel() for p in module.parameters())
    found: dict[str, nn.Module] = {}
    for repeated in _repeated(module, ""):
        blocks = {name: part for name, part in repeated.items() if _owns_all(part, owners)}
        if sum(p.numel() for part in blocks.values() for p in part.parameters()) >= max(least, 1):
            found.update(blocks)
    return found


def _repeated(module: nn.Module, prefix: str) -> Iterator[dict[str, nn.Module]]:
    """Yield the layers of each class that one container repeats, outer containers first."""
    children = {f"{prefix}{name}": child for name, child in module.named_children()}
    counts: Counter[type[nn.Module]] = Counter()
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        containers = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
        counts.update(type(c) for c in children.values() if not isinstance(c, containers))
    for repeated in (kind for kind, count in counts.items() if count > 1):
        yield {name: child for name, child in children.items() if type(child) is repeated}
    for name, child in children.items():
        if counts[type(child)] < 2:
            yield from _repeated(child, f"{name}.")


def _owns_all(part: nn.Module, owners: Counter[int]) -> bool:
    inside = Counter(id(p) for inner in part.modules() for p in set(inner._parameters.values()))
    own = {id(p) for p in part.parameters()}
    return all(owners[key] == inside[key] for key in own)


class ShardMesh(DeviceMesh):
    """The mesh of the ranks that share a model; pickling it, and so any shard, raises an error.

    ::

        model.state_dict()["weight"]   ┐
        optimizer.state_dict()         ├─ DTensor ── its shard of this rank
        copies, slices, .cpu()         ┘          └─ mesh ── pickled along, and raises

    Pickling a `DTensor` silently saves only the shard of its rank. The mesh is pickled with every
    `DTensor`, and with no other tensor, so refusing to pickle the mesh refuses exactly the shards.
    PyTorch's distributed checkpoint saves shards without pickling a mesh.
    """

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise ShardSaveError."""
        raise ShardSaveError(explain_saving(self.size(self.ndim - 1)))

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardMesh:
        """Return the mesh itself: copies of a state stay on its ranks."""
        return self


def make_mesh(group: Group, replicas: int) -> ShardMesh:
    """Return the mesh of all ranks, with a first dimension of replicas if there are several.

    Every rank must call this. With several replicas it creates process groups. Raise SpreadError if
    the ranks cannot be divided into that many replicas of equal size.
    """
    ranks = torch.arange(group.world_size)
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise SpreadError(f"Shards(replicas={replicas!r}) must be a positive integer")
    if replicas == 1:
        return ShardMesh(group.device.type, ranks)
    if group.world_size % replicas or replicas == group.world_size:
        raise SpreadError(
            f"Shards(replicas={replicas}) does not divide {group.world_size} ranks into replicas "
            "of two ranks or more, all of one size; use another number, or for a whole model on "
            "each rank plan=Replicas()"
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
        f"spread(plan=Shards()) has divided this model among {world_size} ranks, so saving it or "
        "its optimizer's state here would keep this rank's shards only, and lose the others'. "
        "anyrig.save(folder, model=model, optimizer=optimizer) on every rank saves the whole. With "
        "PyTorch's functions, on every rank: from torch.distributed.checkpoint.state_dict import "
        "get_model_state_dict, get_optimizer_state_dict, StateDictOptions; "
        "state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
        "cpu_offload=True)); then torch.save(state, path) on rank 0. For the optimizer: "
        "get_optimizer_state_dict(model, optimizer, options=…). To save each rank's own shards: "
        'torch.distributed.checkpoint.save({"model": get_model_state_dict(model)}, '
        "checkpoint_id=folder)"
    )
