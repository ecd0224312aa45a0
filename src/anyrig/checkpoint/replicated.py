"""Which tensors of a training run are equal on all ranks, so that any rank may write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..parallel.engines.ddp import DdpEngine
from ..parallel.spread_module import engine_of
from .names import unwrapped, unwrapping
from .snapshot import Snapshot
from .snapshot_files import stem_of_optimizer
from .wrapper_prefix import remove_wrappers


def replicated_names(
    modules: Mapping[str, nn.Module], snapshot: Snapshot
) -> dict[str, frozenset[str]]:
    """Return the names of tensors that are equal on all ranks, for each stem of the files' names.

    These are the parameters of modules under DDP, once DDP has broadcast them, and their state in
    optimizers. Buffers, and modules that nothing keeps equal, are not among them.
    """
    parameters = {key: frozenset(_parameters_under_ddp(each)) for key, each in modules.items()}
    found: dict[str, frozenset[str]] = dict(parameters)
    # As `names_of_parameters` names them.
    in_optimizers = {
        name if key == "model" else f"{key}/{name}"
        for key, names in parameters.items()
        for name in names
    }
    for key, state in snapshot.optimizers.items():
        found[stem_of_optimizer(key)] = frozenset(
            f"{name}.{part}"
            for name, parts in state.tensors.items()
            if name in in_optimizers
            for part in parts
        )
    return found


def _parameters_under_ddp(model: nn.Module) -> Iterator[str]:
    for each in unwrapping(model):
        if isinstance(each, DistributedDataParallel):
            ddp: DistributedDataParallel | None = each
        elif isinstance(engine := engine_of(each), DdpEngine) and engine.has_begun:
            ddp = engine.ddp
        else:
            continue
        ignored = set() if ddp is None else {*map(remove_wrappers, ddp.parameters_to_ignore)}
        for name, _ in unwrapped(each).named_parameters(remove_duplicate=False):
            if remove_wrappers(name) not in ignored:
                yield remove_wrappers(name)
        return
