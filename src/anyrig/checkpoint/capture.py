"""The state of live objects as a `Snapshot`.

An optimizer's state is stored by the names of the parameters. PyTorch's `get_optimizer_state_dict`
also returns such names, but if the optimizer has no state yet, that function performs a step of the
optimizer, which counts.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CheckpointError
from ..transfer.inner_tensors import (
    class_of,
    describe_wrapper_type,
    flatten_wrapper,
    has_memory,
    is_wrapper,
)
from .names import names_of_parameters, names_of_ties, unwrapped
from .safetensors_writer import fits_safetensors
from .shards import is_elsewhere, is_sharded, local_part
from .snapshot import ModuleState, OptimizerState, Snapshot
from .wrapper_prefix import remove_wrappers


def capture(
    modules: Mapping[str, nn.Module],
    optimizers: Mapping[str, Optimizer],
    others: Mapping[str, Any],
) -> Snapshot:
    """Return the state of modules and other objects by name, and of optimizers by key.

    Nothing is copied or changed: the tensors are the objects' own.

    Raises:
        CheckpointError: an object has no state that can be saved.
    """
    # Read the states before the names: this makes FSDP2 return to its shards.
    states = {name: _module_state(name, each) for name, each in modules.items()}
    names = names_of_parameters(modules)
    return Snapshot(
        modules=states,
        optimizers={key: _optimizer_state(each, names) for key, each in optimizers.items()},
        states={name: state_of(name, each) for name, each in others.items()},
    )


def by_key(what: str, given: Any, saved: Collection[str] = ()) -> dict[str, Any]:
    """Return one object under ``""``, and several by their keys or their positions, as text.

    Of two keys with the same text, such as 1 and ``"1"``, the key that is not a string is saved
    under its text and its type: ``"1-int"``.

    Args:
        what: the argument, for errors.
        given: the objects.
        saved: the texts in the checkpoint that will be loaded.

    Raises:
        CheckpointError: a key cannot be part of a file's name, or two keys have one text.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        strings = {key for key in given if isinstance(key, str)}
        named = [(_text_of_key(key, strings, saved), each) for key, each in given.items()]
    elif isinstance(given, (list, tuple)):
        named = [(str(index), each) for index, each in enumerate(given)]
    else:
        return {"": given}
    found = dict(named)
    for key in found:
        if not key.replace("_", "").replace("-", "").isalnum():
            raise CheckpointError(
                f"{what} has the key {key!r}, which becomes part of a file's name; use letters, "
                "digits, - and _"
            )
    if len(found) < len(named):
        texts = [text for text, _ in named]
        twice = next(text for text in texts if texts.count(text) > 1)
        raise CheckpointError(
            f"{what} has several keys that are saved as {twice!r}; use strings as keys"
        )
    return found


def _text_of_key(key: Any, strings: Collection[str], saved: Collection[str]) -> str:
    if isinstance(key, str):
        return key
    with_type = f"{key}-{type(key).__name__}"
    has_twin = with_type in saved if saved else str(key) in strings
    return with_type if has_twin else str(key)


def state_of(name: str, value: Any) -> Any:
    """Return ``value.state_dict()``.

    Raises:
        CheckpointError: the object has no such method.
    """
    if not callable(getattr(value, "state_dict", None)):
        raise CheckpointError(
            f"{name} is a {type(value).__name__}, which has no state_dict()"
            + explain_stateless(name)
        )
    return value.state_dict()


def explain_stateless(name: str) -> str:
    """Return what to pass instead of an object without a state."""
    if name != "loader":
        return f". Pass an object with state_dict() and load_state_dict() as {name}"
    return (
        ", so it has no position to save or load. Iterate over anyrig.distribute(loader) instead, "
        "which works in one process, too, and pass that loader"
    )


def model_entries(model: nn.Module) -> dict[str, tuple[str, Any]]:
    """Return the state of a model: (the model's own name, value) by plain name.

    Raises:
        CheckpointError: the model's parameters have no names (FSDP1), or two tensors have one name.
    """
    inner = unwrapped(model)
    fsdp = sys.modules.get("torch.distributed.fsdp")  # importing FSDP takes long
    if fsdp and any(isinstance(each, fsdp.FullyShardedDataParallel) for each in inner.modules()):
        raise CheckpointError(
            "this model is wrapped in FullyShardedDataParallel (FSDP1), whose flat parameters have "
            "no names of their own; use anyrig.spread(model, plan=anyrig.Shards()) or "
            "fully_shard (FSDP2)"
        )
    entries: dict[str, tuple[str, Any]] = {}
    for name, value in inner.state_dict().items():
        if not isinstance(name, str):
            raise CheckpointError(
                f"the state_dict() of this {type(inner).__name__} has the key {name!r:.80}, which "
                "is not a string; return names of tensors from state_dict()"
            )
        plain = remove_wrappers(name)
        if plain in entries:
            raise CheckpointError(f"the model has two tensors that are named {plain!r}")
        entries[plain] = name, value
    return entries


def parameter_names(optimizer: Optimizer, names: Mapping[int, str]) -> list[list[str]]:
    """Return the names of the parameters of each group, in order.

    A parameter that does not belong to the model is named by its position.
    """
    return [
        [
            names.get(id(parameter), f"parameter {index} of group {number}")
            for index, parameter in enumerate(group["params"])
        ]
        for number, group in enumerate(optimizer.param_groups)
    ]


def _module_state(called: str, model: nn.Module) -> ModuleState:
    if not isinstance(model, nn.Module):
        raise CheckpointError(
            f"{called} is a {type(model).__name__}, and must be a torch.nn.Module; save a state "
            "dict under another name, such as state="
        )
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    ties = names_of_ties(model)
    entries = model_entries(model)
    for name, (_, value) in entries.items():
        first = ties.get(name, name)
        kept = entries[first][1] if first in entries else value
        for part, each in entries_of_tensor(name, kept).items():
            _require_memory(each, f"the tensor {part} of the {called}")
            if part in tensors or part in values:
                raise CheckpointError(f"the {called} has two tensors that are named {part!r}")
            (tensors if fits_safetensors(each) else values)[part] = each
    return ModuleState(tensors, values)


def entries_of_tensor(name: str, value: Any) -> dict[str, Any]:
    """Return what is saved for an entry of a state dict: itself, or what a wrapper holds.

    A wrapper's own name then has a text that describes the wrapper.
    """
    if not is_wrapper(value):
        return {name: value}
    return {name: describe_wrapper_type(value), **dict(flatten_wrapper(name, value))}


def class_name_of(optimizer: Optimizer) -> str:
    """Return the full name of an optimizer's class."""
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"


def _require_memory(value: Any, what: str) -> None:
    """Raise if a tensor has no bytes that could be saved."""
    if not isinstance(value, Tensor) or is_elsewhere(value):
        return
    if is_sharded(value):
        value = local_part(value)
    if value.is_meta:
        raise CheckpointError(f"{what} is on the meta device, so it has no values to save")
    if is_wrapper(value) or not has_memory(value):
        raise CheckpointError(
            f"{what} is a {class_of(value)}, which has no memory of its own and cannot be saved. "
            "Save what it holds: plain tensors, such as a dequantised copy, or its state dict with "
            "torch.save"
        )


def _optimizer_state(optimizer: Optimizer, names: Mapping[int, str]) -> OptimizerState:
    if not isinstance(optimizer, Optimizer):
        raise CheckpointError(
            f"optimizer is a {type(optimizer).__name__}, and must be a torch.optim.Optimizer, or a "
            "dict or list of several"
        )
    state: Any = optimizer.state_dict()
    # `state_dict` numbers the parameters in the order of the groups.
    named = parameter_names(optimizer, names)
    name_of = dict(enumerate(name for group in named for name in group))
    if len({*name_of.values()}) < len(name_of):
        all_names = [*name_of.values()]
        twice = next(name for name in all_names if all_names.count(name) > 1)
        raise CheckpointError(
            f"the optimizer has two parameters that are named {twice!r}; rename one of them"
        )
    tensors: dict[str, dict[str, Tensor]] = {}
    values: dict[str, dict[str, Any]] = {}
    for key, content in state["state"].items():
        if key not in name_of or not isinstance(content, Mapping):
            values.setdefault("", {})[key] = content
            continue
        for part, value in content.items():
            # With a dot in `part`, two tensors of the file could have the same name.
            is_plain = isinstance(part, str) and "." not in part
            _require_memory(value, f"the optimizer's {part} of {name_of[key]}")
            kind = tensors if is_plain and fits_safetensors(value) else values
            kind.setdefault(name_of[key], {})[part] = value
    groups = [
        {**{key: _host(value) for key, value in group.items()}, "params": its_names}
        for group, its_names in zip(state["param_groups"], named, strict=True)
    ]
    dtypes: dict[str, str] = {}
    in_shards: dict[str, list[str]] = {}
    for group, its_names in zip(optimizer.param_groups, named, strict=True):
        for name, parameter in zip(its_names, group["params"], strict=True):
            dtypes[name] = str(parameter.dtype).removeprefix("torch.")
            if is_sharded(parameter) and not is_elsewhere(parameter):
                its = tensors.get(name, {}).items()
                in_shards[name] = [part for part, tensor in its if is_sharded(tensor)]
    return OptimizerState(tensors, values, groups, class_name_of(optimizer), dtypes, in_shards)


def _host(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value
