"""Modules that load a state in a way of their own, and may refuse it after they have begun.

``torch.nn.Module`` copies tensors whose names and shapes fit, which cannot fail. Other code may
raise at any point: a module's own ``_load_from_state_dict``, its ``set_extra_state``, its hooks.
bitsandbytes' layers are such modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..transfer.inner_tensors import flatten_wrapper, has_memory

# Methods through which a module takes part in a load. The second is private, but documented in the
# source for modules to override.
_METHODS = ("load_state_dict", "_load_from_state_dict", "set_extra_state")
_HOOKS = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
# Their methods and hooks raise nothing once names and shapes fit.
_PLAIN = ("torch.nn.", "torch.distributed.", "anyrig.")


def loads_in_own_way(model: nn.Module) -> bool:
    """Return whether a module of a model has own code that takes part in loading a state."""
    return any(_has_own_code(module) for module in model.modules())


def keep_state(model: nn.Module, entries: Mapping[str, Any]) -> Callable[[], None]:
    """Copy the values of a model to the host, and return a function that puts them back.

    Args:
        model: the model.
        entries: the values of its state dict, which share the model's memory.
    """
    copies = [
        (tensor, tensor.detach().to("cpu", copy=True))
        for value in (*entries.values(), *model.parameters(), *model.buffers())
        if isinstance(value, Tensor)
        for tensor in _local_tensors(value)
    ]
    extra = [
        (module, module.get_extra_state())
        for module in model.modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    ]
    attributes = [
        (vars(owner), {name: _shallow(value) for name, value in vars(owner).items()})
        for module in model.modules()
        for owner in (module, *module.parameters(recurse=False))
        if owner is not None and (isinstance(owner, Tensor) or _has_own_code(module))
    ]

    places = [
        (parameter, parameter.data)
        for module in model.modules()
        if _has_own_code(module)
        for parameter in module.parameters(recurse=False)
        if parameter is not None and has_memory(parameter)
    ]

    def put_back() -> None:
        for own, before in attributes:
            own.clear()
            own.update(before)
        for parameter, data in places:
            parameter.data = data
        with torch.no_grad():
            for tensor, copy in copies:
                tensor.copy_(copy)
        for module, state in extra:
            module.set_extra_state(state)

    return put_back


def _has_own_code(module: nn.Module) -> bool:
    kind = type(module)
    makers = [getattr(kind, name) for name in _METHODS]
    for name in _HOOKS:
        hooks = getattr(module, name, {})
        makers += [getattr(each, "hook", each) for each in hooks.values()]
    return any(not _place_of(maker).startswith(_PLAIN) for maker in makers)


def _place_of(maker: Any) -> str:
    place = getattr(maker, "__module__", None) or type(maker).__module__
    return f"{place}."


def _local_tensors(value: Tensor) -> Iterator[Tensor]:
    """Yield the plain tensors of this process behind a tensor."""
    sharded: Any = value
    local = sharded.to_local() if hasattr(value, "to_local") else value
    for _, tensor in flatten_wrapper("", local):
        if not tensor.is_meta and not hasattr(tensor, "on_rank"):
            yield tensor.detach()


def _shallow(value: Any) -> Any:
    return value.copy() if type(value).__name__ in ("dict", "OrderedDict") else value
