"""Finding layers that were replaced, removed or added since a module was divided into stages."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ....errors import SpreadError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def list_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the submodules by name."""
    return {name: layer for name, layer in module.named_modules() if name}


def require_known_layers(module: nn.Module, known: Mapping[str, nn.Module]) -> None:
    """Raise if the submodules are not those that were divided.

    Layers that a module makes for itself later, outside containers, do not count as a change.

    Raises:
        SpreadError: a layer was replaced, removed, or added to a container; the message names it.
    """
    found = list_layers(module)
    for name, layer in known.items():
        if found.get(name) is not layer:
            what = "removed"
            if name in found:
                what = f"replaced ({type(layer).__name__} by {type(found[name]).__name__})"
            raise _changed(module, name, what)
    parents = {"": module, **known}
    for name in found.keys() - known.keys():
        if isinstance(parents.get(name.rpartition(".")[0]), _CONTAINERS):
            raise _changed(module, name, "added")


def _changed(module: nn.Module, name: str, what: str) -> SpreadError:
    return SpreadError(
        f"layer {name!r} of {type(module).__name__} was {what}, and stages compute the layers that "
        "the module had when it was spread. Spread the module again: anyrig.spread(module, …)"
    )
