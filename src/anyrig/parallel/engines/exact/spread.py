"""The plan `Exact` of `spread`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ....errors import RankMismatchError, SpreadError
from ....processes.group.board import board_of
from ....processes.time_limit import limit_or_default
from ....units import format_count
from ...layout import Layout
from ...losses.loss import Criterion
from ...own_class import move_module, states_of
from ...plans import Exact, Shards
from ...ranks.states import broadcast_states
from ...spread_module import SpreadModule
from ..replicas.replicas import check_place
from .conditions import describe_device, fix_threads
from .engine import ExactEngine
from .logical_shards import check_logical_shards
from .price import price_of
from .state import ExactState


def spread_exactly(
    module: torch.nn.Module,
    layout: Layout,
    loss: Criterion | None,
    plan: Exact,
) -> SpreadModule:
    """Spread a module so that a training run has the same bits on any number of ranks.

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
            f"Exact uses one device for each process, and this process has "
            f"{len(layout.devices)}; start the script with anyrig run, or spread over one device"
        )
    _require_whole(module)
    ranks = 1 if group is None else group.world_size
    state = ExactState(
        logical_shards=check_logical_shards(plan.shards, ranks),
        device=describe_device(device),
        torch=str(torch.__version__),
        precision=str(layout.precision),
        seed=torch.initial_seed(),
    )
    fix_threads(device)
    gradient_bytes = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    if group is not None:
        state.seed = _agree(state, layout)
        if isinstance(plan.within, Shards):
            from ..fsdp import shard

            layout = replace(layout, blocks=shard(module, group, plan.within))
        else:
            if all(each.device.type == "cpu" for each in module.parameters()):
                move_module(module, device)
            check_place(module, device)
            broadcast_states(states_of(module), 0)
    price = price_of(
        gradient_bytes, plan.shards, ranks, layout.way == "shards", device.type == "cpu"
    )
    text = f"{format_count(plan.shards, 'logical shard')}; {price}"
    return SpreadModule(ExactEngine(module, replace(layout, exact=text), loss, state))


def _require_whole(module: torch.nn.Module) -> None:
    """Raise SpreadError if the module uses tensor parallelism."""
    for name, parameter in module.named_parameters():
        if hasattr(parameter, "to_local"):  # a DTensor
            raise SpreadError(
                f"the parameter {name} is a DTensor: with tensor parallelism each rank computes a "
                "part of every product, and the sum of the parts depends on the number of ranks. "
                "Exact needs the whole module on each rank, or within=Shards()"
            )


def _agree(state: ExactState, layout: Layout) -> int:
    """Return the seed of rank 0, after a check that all ranks compute alike."""
    assert layout.group is not None
    own: Mapping[str, Any] = {**state.as_state(), "within": layout.plan.noun}
    texts = board_of(layout.group).exchange(
        "exact", json.dumps(own).encode(), limit_or_default(None), "spread(plan=Exact(…))"
    )
    of_ranks = [json.loads(text) for text in texts]
    for rank, other in enumerate(of_ranks):
        for name, value in other.items():
            if name != "seed" and value != of_ranks[0][name]:
                raise RankMismatchError(
                    f"Exact needs the same {name} on every rank: rank 0 has "
                    f"{of_ranks[0][name]!r}, but rank {rank} has {value!r}"
                )
    return int(of_ranks[0]["seed"])
