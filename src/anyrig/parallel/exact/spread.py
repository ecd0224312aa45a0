"""The option `logical_shards=` of `spread`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...errors import RankMismatchError, SpreadError
from ...processes.group.board import board_of
from ...processes.time_limit import limit_or_default
from ...units import format_count
from ..group.states import broadcast_states
from ..layout import Layout
from ..losses.criterions import recognise
from ..losses.loss import Criterion, explain_loss, reduction_of
from ..own_class import move_module, states_of
from ..replicas.replicas import check_place
from .conditions import describe_device, fix_threads
from .logical_shards import check_logical_shards
from .module import ExactModule
from .price import price_of
from .state import ExactState

if TYPE_CHECKING:
    from ..sharded import Sharding


def check_exact_options(
    loss: Criterion | None, *, sharding: Sharding | None, **options: Any
) -> None:
    """Raise SpreadError for an option that cannot be combined with `logical_shards`."""
    if loss is None:
        raise SpreadError(
            "logical_shards= computes gradients shard by shard, so it needs the loss: "
            "spread(module, loss=criterion, logical_shards=…), and model(x, target=y)"
        )
    if reduction_of(loss, recognise(loss)) == "none":
        raise SpreadError('logical_shards= needs one number as the loss; use reduction="mean"')
    if isinstance(loss, torch.nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise SpreadError(
            "logical_shards= sums gradients of the module's parameters only, but the loss has "
            "parameters to learn; make the loss a part of the module"
        )
    if options.pop("precision") in ("float16", torch.float16):
        raise SpreadError(
            "logical_shards= computes gradients before a GradScaler scales the loss, so float16 "
            'gradients would vanish; use precision="bfloat16"'
        )
    for name, value in options.items():
        if value:
            raise SpreadError(f"logical_shards= cannot be combined with {name}=; leave it out")
    if sharding is not None and (
        sharding.mixed_precision or sharding.offload or sharding.replicas > 1
    ):
        raise SpreadError(
            "logical_shards= adds up gradients in the dtype of parameters, on their device and "
            "over all ranks; leave mixed_precision=, offload= and replicas= out of Sharding, and "
            'use precision="bfloat16" for autocast'
        )


def spread_exactly(
    module: torch.nn.Module,
    layout: Layout,
    loss: Criterion | None,
    logical_shards: int,
    sharding: Sharding | None = None,
) -> ExactModule:
    """Spread a module so that its training has the same bits on any number of ranks.

    On the CPU, this process computes with one thread afterwards.

    Raises:
        SpreadError: the ranks cannot have the same number of logical shards, the process has
            several devices, or the module is divided already.
        RankMismatchError: the ranks have different devices or arguments.
        RankWaitError: another rank did not come in time.
    """
    assert loss is not None
    group, device = layout.group, layout.lead
    if group is None and len(layout.devices) > 1:
        raise SpreadError(
            f"logical_shards= uses one device for each process, and this process has "
            f"{len(layout.devices)}; start the script with anyrig run, or spread over one device"
        )
    _require_whole(module)
    ranks = 1 if group is None else group.world_size
    state = ExactState(
        logical_shards=check_logical_shards(logical_shards, ranks),
        device=describe_device(device),
        torch=str(torch.__version__),
        precision=str(layout.precision),
        seed=torch.initial_seed(),
    )
    fix_threads(device)
    gradient_bytes = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    if group is not None:
        state.seed = _agree(state, layout)
        if layout.how == "shard":
            from ..sharded import Sharding, shard

            layout = replace(layout, blocks=shard(module, group, sharding or Sharding()))
        else:
            if all(each.device.type == "cpu" for each in module.parameters()):
                move_module(module, device)
            check_place(module, device)
            broadcast_states(states_of(module), 0)
    price = price_of(
        gradient_bytes, logical_shards, ranks, layout.how == "shard", device.type == "cpu"
    )
    text = f"{format_count(logical_shards, 'logical shard')}; {price}"
    layout = replace(layout, loss=explain_loss(loss), exact=text)
    return ExactModule(module, layout, loss, state)


def _require_whole(module: torch.nn.Module) -> None:
    """Raise SpreadError if the module uses tensor parallelism."""
    for name, parameter in module.named_parameters():
        if hasattr(parameter, "to_local"):  # a DTensor
            raise SpreadError(
                f"the parameter {name} is a DTensor: with tensor parallelism each rank computes a "
                "part of every product, and the sum of the parts depends on the number of ranks. "
                'logical_shards= needs the whole module on each rank, or how="shard"'
            )


def _agree(state: ExactState, layout: Layout) -> int:
    """Return the seed of rank 0, after a check that all ranks compute alike."""
    assert layout.group is not None
    own: Mapping[str, Any] = {**state.as_state(), "how": layout.how}
    texts = board_of(layout.group).exchange(
        "exact", json.dumps(own).encode(), limit_or_default(None), "spread(logical_shards=…)"
    )
    of_ranks = [json.loads(text) for text in texts]
    for rank, other in enumerate(of_ranks):
        for name, value in other.items():
            if name != "seed" and value != of_ranks[0][name]:
                raise RankMismatchError(
                    f"logical_shards= needs the same {name} on every rank: rank 0 has "
                    f"{of_ranks[0][name]!r}, but rank {rank} has {value!r}"
                )
    return int(of_ranks[0]["seed"])
