"""The state of a model in stages on several ranks, completed on every rank.

Each rank has the tensors of its stages and their state in the optimizer. The ranks exchange what
they have, so that every rank knows the whole state, and rank 0 can gather it tensor by tensor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from ..parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere
from ..parallel.engines.pipeline.over_ranks.whole_state import OnOneRank
from ..parallel.spread_module import engine_of
from .names import unwrapped
from .snapshot import ModuleState, OptimizerState, Snapshot


def describe_pipelines(snapshot: Snapshot) -> str:
    """Return this rank's part of the optimizers as text, for `complete_pipelines` on all ranks.

    Raises:
        CheckpointError: an optimizer has a value that cannot be sent to other ranks.
    """
    if not any(map(_is_in_pipeline, snapshot.modules.values())):
        return ""
    return json.dumps({key: _describe(state) for key, state in snapshot.optimizers.items()})


def complete_pipelines(
    snapshot: Snapshot, modules: Mapping[str, nn.Module], described: Sequence[str], rank: int
) -> Snapshot:
    """Return a snapshot with the tensors of all ranks, if a module is in a pipeline over ranks.

    The tensors are `OnOneRank`.

    Args:
        snapshot: the snapshot of this rank.
        modules: the modules of the snapshot.
        described: what `describe_pipelines` returned on each rank.
        rank: this rank.
    """
    states = {
        key: _complete_module(state, modules[key]) if _is_in_pipeline(state) else state
        for key, state in snapshot.modules.items()
    }
    optimizers = dict(snapshot.optimizers)
    if all(described):
        of_ranks = [json.loads(text) for text in described]
        for key, state in snapshot.optimizers.items():
            optimizers[key] = _complete_optimizer(state, [each[key] for each in of_ranks], rank)
    return replace(snapshot, modules=states, optimizers=optimizers)


def _is_in_pipeline(state: ModuleState) -> bool:
    # Every rank of a pipeline has stages that no other has.
    return any(isinstance(tensor, Elsewhere) for tensor in state.tensors.values())


def _complete_module(state: ModuleState, model: nn.Module) -> ModuleState:
    engine: Any = engine_of(unwrapped(model))
    row = engine.pipeline_row
    first = row.ranks_of(0)
    made: dict[int, OnOneRank] = {}  # tied tensors remain one object
    for tensor in state.tensors.values():
        place: int = row.place
        held: Any = tensor
        if isinstance(tensor, Elsewhere):
            place, held = tensor.on_rank % len(first), None
        made[id(tensor)] = OnOneRank(tensor.shape, tensor.dtype, first[place], held)
    return replace(state, tensors={name: made[id(t)] for name, t in state.tensors.items()})


def _describe(state: OptimizerState) -> dict[str, Any]:
    tensors = {
        name: {
            part: (list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for part, tensor in parts.items()
        }
        for name, parts in state.tensors.items()
    }
    values = {name: dict(parts) for name, parts in state.values.items()}
    try:
        json.dumps(values)
    except TypeError as error:
        raise CheckpointError(
            f"the optimizer's state has a value that is not a tensor, number or string ({error}), "
            "which cannot be collected from the ranks of a pipeline"
        ) from error
    return {"tensors": tensors, "values": values}


def _complete_optimizer(
    state: OptimizerState, of_ranks: list[dict[str, Any]], rank: int
) -> OptimizerState:
    tensors: dict[str, dict[str, Tensor]] = {}
    values: dict[str, dict[str, Any]] = {}
    own: Any = state.tensors
    for source, described in enumerate(of_ranks):
        for name, parts in described["tensors"].items():
            if name in tensors:  # another pipeline has it, too
                continue
            tensors[name] = {
                part: OnOneRank(
                    shape,
                    getattr(torch, dtype),
                    source,
                    own[name][part] if source == rank else None,
                )
                for part, (shape, dtype) in parts.items()
            }
        for name, held in described["values"].items():
            values.setdefault(name, held)
    return replace(state, tensors=tensors, values=values)
