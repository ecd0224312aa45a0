"""Put the saved state of an optimizer into a live one: the checks first, then the changes.

`Optimizer.load_state_dict` converts every tensor to the element type of its parameter. Here, the
tensors keep the types that were saved, as float32 momentum of bfloat16 parameters must.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import KeyMismatchError
from .capture import class_name_of, parameter_names
from .fit import CONVERT, is_convertible, require_same_names
from .shards import divided_like, is_elsewhere, is_sharded, read_into, replicated_like
from .snapshot import OptimizerState
from .tensor_in_parts import SavedTensor, TensorInParts, whole_tensor
from .undo import Undo

# PyTorch's optimizers keep the number of steps in a plain tensor, even for parameters in shards.
_PLAIN_PART = "step"


def prepare_optimizer(
    saved: OptimizerState,
    optimizer: Optimizer,
    names: Mapping[int, str],
    source: object,
    *,
    convert: bool,
) -> Callable[[Undo], list[Callable[[], object]]]:
    """Check that a state fits an optimizer, and return a function that loads it.

    The function returns what remains to be done when nothing can fail any more: copies into the
    memory of the optimizer's present state.

    Args:
        saved: the state to load.
        optimizer: the optimizer.
        names: the names of the parameters, by their ids.
        source: names the checkpoint in errors.
        convert: whether to convert state in a parameter's old type to the parameter's new type.

    Raises:
        KeyMismatchError: the class, the groups, a shape or a type differs.
    """
    named = parameter_names(optimizer, names)
    what = f"the {saved.kind.rpartition('.')[2] or type(optimizer).__name__} in {source}"
    if saved.kind and not _is_same_class(saved.kind, optimizer):
        raise KeyMismatchError(
            f"{what} is a {saved.kind}, and this optimizer a {class_name_of(optimizer)}: it would "
            "not find its state. Nothing was loaded. Make the optimizer that was saved, or leave "
            "optimizer= out of load()"
        )
    if len(named) != len(saved.groups):
        raise KeyMismatchError(
            f"{what} has {len(saved.groups)} groups of parameters, this optimizer {len(named)}. "
            "Make the optimizer with the groups that it had when it was saved"
        )
    for number, (group, own_names) in enumerate(zip(saved.groups, named, strict=True)):
        require_same_names(
            group["params"], own_names, f"group {number} of {what}", "this optimizer"
        )
    parameters = [
        (name, each)
        for group, its in zip(optimizer.param_groups, named, strict=True)
        for name, each in zip(its, group["params"], strict=True)
    ]
    for name, parameter in parameters:
        _require_same_types(saved, name, parameter, optimizer, what, convert)
    keeps_memory = type(optimizer).__module__.startswith("torch.optim.")

    def apply(undo: Undo) -> list[Callable[[], object]]:
        before = {**vars(optimizer)}
        undo.add(lambda: vars(optimizer).update(before))
        later: list[Callable[[], object]] = []
        state: dict[Any, Any] = dict(saved.values.get("", {}))
        for number, (name, parameter) in enumerate(parameters):
            if is_elsewhere(parameter):
                continue
            present = optimizer.state.get(parameter, {}) if keeps_memory else {}
            parts: dict[str, Any] = {}
            for part, tensor in saved.tensors.get(name, {}).items():
                own = present.get(part)
                if isinstance(own, Tensor) and (own.shape, own.dtype) == (
                    tensor.shape,
                    tensor.dtype,
                ):
                    parts[part] = own
                    later.append(lambda tensor=tensor, own=own: _write(tensor, own))  # type: ignore[misc]
                else:
                    in_shards = saved.in_shards.get(name)
                    each = _new_tensor(tensor, parameter, part, in_shards)
                    if convert and part != _PLAIN_PART:
                        each = _converted(each, saved, name, parameter)
                    parts[part] = each
            parts |= copy.deepcopy(dict(saved.values.get(name, {})))
            if parts:
                state[number] = parts
        numbers = {name: number for number, (name, _) in enumerate(parameters)}
        groups = [
            {**copy.deepcopy(dict(group)), "params": [numbers[name] for name in group["params"]]}
            for group in _in_order(saved.groups, named)
        ]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        for number, (_, parameter) in enumerate(parameters):
            _keep_types(optimizer.state.get(parameter), state.get(number, {}))
        _require_options(optimizer, before["param_groups"], what)
        return later

    return apply


def _in_order(groups: Any, named: list[list[str]]) -> list[dict[str, Any]]:
    """Return the groups with their parameters in the order of the live optimizer."""
    return [{**group, "params": its} for group, its in zip(groups, named, strict=True)]


def _is_same_class(kind: str, optimizer: Optimizer) -> bool:
    """Return whether a saved class is the optimizer's, its base or, by name, a moved script's."""
    for each in type(optimizer).__mro__:
        own = f"{each.__module__}.{each.__qualname__}"
        if each is Optimizer or own == kind:
            return own == kind
        # A script's own class is in __main__, or in the module that another script imports.
        is_own = not {own.partition(".")[0], kind.partition(".")[0]} & {"torch"}
        if is_own and own.rpartition(".")[2] == kind.rpartition(".")[2]:
            return True
    return False


def _require_same_types(
    saved: OptimizerState,
    name: str,
    parameter: Tensor,
    optimizer: Optimizer,
    what: str,
    convert: bool,
) -> None:
    was, now = saved.dtypes.get(name), str(parameter.dtype).removeprefix("torch.")
    if was not in (None, now) and not convert:
        raise KeyMismatchError(
            f"{what} belongs to {name} as {was}, and the parameter is {now}. Nothing was loaded. "
            f"Make the model with the types that were saved, or pass {CONVERT}"
        )
    for part, tensor in saved.tensors.get(name, {}).items():
        own = optimizer.state.get(parameter, {}).get(part)
        if not isinstance(own, Tensor):
            continue
        if own.shape != tensor.shape:
            raise KeyMismatchError(
                f"{what} has {part} of {name} in the shape {list(tensor.shape)} instead of "
                f"{list(own.shape)}. Nothing was loaded"
            )
        if own.dtype != tensor.dtype and not (convert and is_convertible(tensor, own)):
            raise KeyMismatchError(
                f"{what} has {part} of {name} as {tensor.dtype} instead of {own.dtype}. Nothing "
                f"was loaded. Make the optimizer as it was when it was saved, or pass {CONVERT}"
            )


def _write(saved: SavedTensor, own: Tensor) -> None:
    """Copy a saved tensor into the memory of the optimizer's own."""
    with torch.no_grad():
        if isinstance(saved, TensorInParts):
            read_into(saved, own)
        else:
            own.copy_(divided_like(saved, own))


def _new_tensor(saved: SavedTensor, parameter: Tensor, part: str, in_shards: Any) -> Tensor:
    """Return a saved tensor in new memory, on the parameter's device, and sharded if the parameter
    is.

    Args:
        saved: the tensor.
        parameter: its parameter.
        part: its name in the state of the parameter.
        in_shards: the parts that were in shards when they were saved, None if the parameter was
            not.
    """
    if saved.shape == parameter.shape and saved.shape:
        divided = divided_like(saved, parameter)
        return divided.clone() if isinstance(saved, Tensor) and not divided.is_cuda else divided
    whole = whole_tensor(saved).clone()
    if is_sharded(parameter) and (
        part in in_shards if in_shards is not None else part != _PLAIN_PART
    ):
        return replicated_like(whole, parameter)
    return whole


def _converted(tensor: Tensor, saved: OptimizerState, name: str, parameter: Tensor) -> Tensor:
    """Convert state that was in the parameter's type; float32 state of any parameter stays."""
    was = str(tensor.dtype).removeprefix("torch.")
    if was == saved.dtypes.get(name) and is_convertible(tensor, parameter):
        return tensor.to(parameter.dtype)
    return tensor


def _keep_types(loaded: Any, given: Mapping[str, Any]) -> None:
    """Put back the tensors whose types `Optimizer.load_state_dict` has converted."""
    if not isinstance(loaded, dict):
        return
    for part, tensor in given.items():
        found = loaded.get(part)
        if not isinstance(tensor, Tensor) or not isinstance(found, Tensor):
            continue
        if found.dtype != tensor.dtype:
            loaded[part] = tensor.to(found.device)


def _require_options(optimizer: Optimizer, before: list[dict[str, Any]], what: str) -> None:
    """Raise if a group lost an option that the optimizer reads."""
    for number, (group, old) in enumerate(zip(optimizer.param_groups, before, strict=True)):
        missing = sorted({*optimizer.defaults} & {*old} - {*group})
        if missing:
            raise KeyMismatchError(
                f"group {number} of {what} has no option {', '.join(missing)}, which this "
                f"{type(optimizer).__name__} reads. Nothing was loaded. Make the optimizer that "
                "was saved, or leave optimizer= out of load()"
            )
