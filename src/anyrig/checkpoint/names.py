"""Names of parameters that do not depend on how a model was wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..parallel.replicas.transparent import TransparentModule

# The attribute in which a wrapper has its module, where the attribute shows in names. Both are
# private; without them, names would depend on whether a layer is compiled or recomputed.
_COMPILED = "_orig_mod"  # torch.compile(module)
_RECOMPUTED = "_checkpoint_wrapped_module"  # PyTorch's checkpoint_wrapper


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, `torch.nn.DataParallel` and `torch.compile`.

    What `anyrig.spread` returns has the names of its module already.
    """
    while not isinstance(model, TransparentModule):
        if isinstance(model, (DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(getattr(model, _COMPILED, None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            break
    return model


def plain_name(name: str) -> str:
    """Return a name without the parts that wrappers inside the model add."""
    parts = name.split(".")
    return ".".join(part for part in parts if part not in (_COMPILED, _RECOMPUTED))


def names_of_parameters(modules: Mapping[str, nn.Module]) -> dict[int, str]:
    """Return the first plain name of each parameter, by the parameter's `id`.

    The parameters of modules other than ``"model"`` are ``critic/0.weight``.
    """
    names: dict[int, str] = {}
    for key, module in modules.items():
        prefix = "" if key == "model" else f"{key}/"
        for name, parameter in unwrapped(module).named_parameters():
            names.setdefault(id(parameter), prefix + plain_name(name))
    return names


def names_of_ties(model: nn.Module) -> dict[str, str]:
    """Return the first plain name of each parameter and buffer that has several names.

    The keys are the other names.
    """
    inner = unwrapped(model)
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    named: Iterable[tuple[str, object]] = [
        *inner.named_parameters(remove_duplicate=False),
        *inner.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named:
        known = first.setdefault(id(tensor), plain_name(name))
        if known != plain_name(name):
            ties[plain_name(name)] = known
    return ties
