"""The option `exact=` of `load` and `resume`: the same bits on another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import CheckpointDamagedError, CheckpointError
from ..parallel.engines.exact.engine import ExactEngine
from ..parallel.engines.exact.state import ExactState, is_state
from ..parallel.spread_module import engine_of
from .names import unwrapped
from .restore import Targets
from .snapshot import Snapshot
from .snapshot_files import VALUES_NAME
from .values_file import decode_text

# The name of the state in a snapshot. No keyword of `save` has a hyphen.
EXACT = "exact-state"
_WHY = "exact=True: "


def exact_state_of(model: nn.Module | None) -> ExactState | None:
    """Return the state of a model that was spread with the plan `Exact`; None for others."""
    engine = None if model is None else engine_of(unwrapped(model))
    return engine.state if isinstance(engine, ExactEngine) else None


def require_exact(given: Targets) -> ExactState:
    """Return the model's state if its training run gives the same bits on any number of ranks.

    Raises:
        CheckpointError: it does not; the message says why.
    """
    model = given.modules.get("model")
    state = exact_state_of(model)
    if model is None or state is None:
        parts = [name for name, p in model.named_parameters() if _is_divided(p)] if model else []
        why = (
            f"the parameter {parts[0]} is divided among the ranks (tensor parallelism or shards), "
            "and sums over the parts depend on the number of ranks"
            if parts
            else "the model adds up gradients in an order that depends on the number of ranks"
        )
        raise CheckpointError(
            f"{_WHY}{why}. Train with anyrig.spread(module, plan=anyrig.Exact(12), loss=criterion) "
            "and anyrig.distribute(loader, model)"
        )
    loader: Any = given.others.get("loader")
    position = loader.state_dict() if hasattr(loader, "state_dict") else {}
    if position.get("logical_shards") != state.logical_shards:
        raise CheckpointError(
            f"{_WHY}the loader must divide batches into {state.logical_shards} logical shards, and "
            "keep its position. Pass loader=anyrig.distribute(loader, model)"
        )
    if not given.optimizers:
        raise CheckpointError(f"{_WHY}pass the optimizer, too; it has a state")
    for optimizer in given.optimizers.values():
        for group in optimizer.param_groups:
            if group.get("fused") and any(p.device.type == "cpu" for p in group["params"]):
                raise CheckpointError(
                    f"{_WHY}the fused {type(optimizer).__name__} rounds the last elements of each "
                    "shard differently on the CPU; use fused=False"
                )
    return state


def require_same_training(
    given: Targets, snapshot: Snapshot, folder: Path
) -> tuple[dict[str, Any], str]:
    """Return the random numbers for every rank, and a text that names those that are not exact.

    Raises:
        CheckpointError: the training run of the objects or of the checkpoint does not give the same
            bits on any number of ranks, or the checkpoint is of another training run or has more
            objects.
    """
    state = require_exact(given)
    saved = snapshot.states.get(EXACT)
    if not is_state(saved):
        raise CheckpointError(
            f"{_WHY}{folder} was not saved by a training run with logical shards, so the order of "
            "its sums depended on its ranks. Load it without exact=True"
        )
    state.require_same(saved)
    saved_loader = snapshot.states.get("loader", {}).get("logical_shards")
    if saved_loader != state.logical_shards:
        raise CheckpointError(
            f"{_WHY}{folder} was saved with a loader that did not divide batches into logical "
            "shards. Load it without exact=True"
        )
    pairs = (
        (snapshot.modules, given.modules),
        (snapshot.optimizers, given.optimizers),
        (snapshot.states, {**given.others, EXACT: None}),
    )
    for kept, passed in pairs:
        for name in sorted(kept.keys() - passed.keys()):
            what = name or "optimizer"
            raise CheckpointError(f"{_WHY}{folder} has a state of {what}; pass {what}, too")
    return _common_numbers(snapshot, folder)


def check_exact_state(snapshot: Snapshot, folder: Path) -> None:
    """Raise CheckpointDamagedError if a checkpoint's state of logical shards was altered."""
    if EXACT in snapshot.states and not is_state(snapshot.states[EXACT]):
        path = folder / VALUES_NAME
        raise CheckpointDamagedError(
            f"{path} does not have the values of a checkpoint: states[{EXACT!r}] was altered. Load "
            "another checkpoint of the series",
            path,
        )


def go_on_exactly(model: nn.Module | None, snapshot: Snapshot) -> None:
    """Continue the model's own random numbers, if the checkpoint has them."""
    state, saved = exact_state_of(model), snapshot.states.get(EXACT)
    if state is not None and is_state(saved):
        state.go_on(saved)


def _common_numbers(snapshot: Snapshot, folder: Path) -> tuple[dict[str, Any], str]:
    of_ranks = [decode_text(each["state"], folder / VALUES_NAME) for each in snapshot.random]
    first: dict[str, Any] = of_ranks[0]
    for rank, other in enumerate(of_ranks):
        theirs = [other["torch"], *other["devices"][:1]]
        ours = [first["torch"], *first["devices"][:1]]
        if not all(map(torch.equal, theirs, ours)):
            raise CheckpointError(
                f"{_WHY}when {folder} was saved, rank {rank} had different random numbers from "
                "rank 0 outside the model, so its next draws depend on the ranks. Seed all ranks "
                "alike, and draw inside the model, or the same numbers on every rank"
            )
    names = {"python": "Python", "numpy": "NumPy"}
    differing = [
        name for key, name in names.items() if any(o.get(key) != first.get(key) for o in of_ranks)
    ]
    if not differing:
        return first, ""
    return first, (
        f"random numbers of {' and '.join(differing)}: they differed between the ranks, which the "
        "script did not seed alike; all ranks continue with those of rank 0"
    )


def _is_divided(parameter: nn.Parameter) -> bool:
    return hasattr(parameter, "to_local")  # a DTensor
