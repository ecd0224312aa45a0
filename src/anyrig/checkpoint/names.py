"""Names of parameters that do not depend on how a model was wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import CheckpointError
from ..parallel.spread_module import SpreadModule
from .wrapper_prefix import remove_wrappers

# The class that torch.compile makes, and its attribute for the module. The names are private;
# without them, names would depend on whether a model is compiled. A module of another class may
# have a child of this name, and others, which must be saved, too.
_COMPILED_CLASS = "torch._dynamo.eval_frame.OptimizedModule"
# The name under which PyTorch keeps the extra state of a module.
_EXTRA_STATE = "_extra_state"


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, `torch.nn.DataParallel` and `torch.compile`.

    A module that `anyrig.spread` returns already has the names of the original module.
    """
    *_, innermost = unwrapping(model)
    return innermost


def unwrapping(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a model, and the module inside each of its wrappers, the innermost last."""
    yield model
    while not isinstance(model, SpreadModule):
        if isinstance(model, (DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif f"{type(model).__module__}.{type(model).__qualname__}" == _COMPILED_CLASS:
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return
        yield model


def names_of_parameters(modules: Mapping[str, nn.Module]) -> dict[int, str]:
    """Return the first plain name of each parameter, by the parameter's `id`.

    The parameters of modules other than ``"model"`` have names such as ``critic/0.weight``.

    Raises:
        CheckpointError: two parameters have one name, because a module's name has a slash.
    """
    names: dict[int, str] = {}
    owners: dict[str, int] = {}
    for key, module in modules.items():
        prefix = "" if key == "model" else f"{key}/"
        for name, parameter in unwrapped(module).named_parameters():
            plain = names.setdefault(id(parameter), prefix + remove_wrappers(name))
            if owners.setdefault(plain, id(parameter)) != id(parameter):
                raise CheckpointError(
                    f"two parameters have the name {plain!r}: {name!r} of {key}, and one of "
                    "another module. Rename one of them"
                )
    return names


def names_of_ties(model: nn.Module) -> dict[str, str]:
    """Return the first plain name of each parameter and buffer that has several names.

    The keys are the other names.

    Raises:
        CheckpointError: a name is one that `load_state_dict` would not take for a tensor's.
    """
    inner = unwrapped(model)
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    named: Iterable[tuple[str, object]] = [
        *inner.named_parameters(remove_duplicate=False),
        *inner.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named:
        if name.rpartition(".")[2] == _EXTRA_STATE:
            raise CheckpointError(
                f"a tensor has the name {name!r}, but load_state_dict() takes {_EXTRA_STATE} for "
                "what get_extra_state() has returned. Rename it"
            )
        known = first.setdefault(id(tensor), remove_wrappers(name))
        if known != remove_wrappers(name):
            ties[remove_wrappers(name)] = known
    return ties
