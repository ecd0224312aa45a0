"""The models and optimizers that exist, found among all objects of the process."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.optim import Optimizer

from ..observe.census import find_instances, is_replica, take_census


def find_optimizers() -> list[Optimizer]:
    """Return all optimizers that exist."""
    return find_instances(Optimizer)[Optimizer]


def find_models() -> tuple[nn.Module, ...]:
    """Return the modules that exist and that are part of no other module."""
    return take_census().own_models


def find_homes() -> dict[int, tuple[nn.Module, str]]:
    """Return the modules that have each parameter, by its id, and its name there."""
    return {
        id(parameter): (module, name)
        for module in find_instances(nn.Module)[nn.Module]
        if "_parameters" in vars(module) and not is_replica(module)
        for name, parameter in vars(module)["_parameters"].items()
    }


def names_of(parameters: Iterable[Tensor]) -> list[str]:
    """Return the names of parameters in the models that have them, sorted."""
    wanted = {id(parameter) for parameter in parameters}
    return sorted(
        {
            name
            for model in find_models()
            for name, parameter in model.named_parameters()
            if id(parameter) in wanted
        }
    )


def list_names(names: Iterable[str], most: int = 4) -> str:
    """Return names as text, the first few of many."""
    names = list(names)
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
