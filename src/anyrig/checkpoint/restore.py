"""Put a `Snapshot` into live objects: all checks first, then all changes.

Values are written in place, so a model stays in its memory, and an optimizer keeps its parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CheckpointError, KeyMismatchError
from .capture import explain_stateless, model_entries, parameter_names
from .mismatch import find_mismatch
from .names import names_of_parameters, unwrapped
from .shards import divided_like, is_elsewhere, is_sharded, read_into
from .snapshot import ModuleState, OptimizerState, Snapshot
from .tensor_in_parts import SavedTensor, TensorInParts, whole_tensor

_MOST_NAMED = 10


@dataclass(frozen=True)
class Targets:
    """The objects that get a state.

    Attributes:
        modules: the modules by name; each gets parameters and buffers.
        optimizers: the optimizers by key, as for `capture`.
        others: the other objects with ``load_state_dict``, by name.
    """

    modules: Mapping[str, nn.Module]
    optimizers: Mapping[str, Optimizer]
    others: Mapping[str, Any]


def prepare(snapshot: Snapshot, targets: Targets, source: object) -> Callable[[], None]:
    """Check that a snapshot fits, and return a function that puts it into the objects.

    Args:
        snapshot: what to restore.
        targets: the objects that get the state.
        source: names the checkpoint in errors.

    Raises:
        KeyMismatchError: names or shapes differ; the message lists them. Nothing has changed.
        CheckpointError: the checkpoint has no state for an object. Nothing has changed.
    """
    changes: list[Callable[[], None]] = []
    for name, target in targets.others.items():
        _check_other(snapshot, name, target, source)
    for name, module in targets.modules.items():
        if name not in snapshot.modules:
            raise CheckpointError(_has_no(name, source))
        changes.append(_prepare_module(snapshot.modules[name], name, module, source))
    names = names_of_parameters(targets.modules)
    for key, optimizer in targets.optimizers.items():
        if key not in snapshot.optimizers:
            raise CheckpointError(_has_no(f"optimizer {key!r}" if key else "optimizer", source))
        changes.append(_prepare_optimizer(snapshot.optimizers[key], optimizer, names, source))

    def apply() -> None:
        _restore_others(snapshot, targets.others, source)
        with torch.no_grad():
            for change in changes:
                change()

    return apply


def _has_no(what: str, source: object) -> str:
    return (
        f"{source} has no state of this {what}. Leave it out of load(), or load another checkpoint"
    )


def _prepare_module(
    state: ModuleState, called: str, model: nn.Module, source: object
) -> Callable[[], None]:
    entries = model_entries(model)
    saved: dict[str, Any] = {**state.tensors, **state.values}
    own = {name: value for name, (_, value) in entries.items()}
    what, table = f"the {called} in {source}", _mismatch_table(saved, own)
    _require_same_keys(saved, own, what, f"this {type(model).__name__}", table)
    _require_same_shapes(saved, own, what, table)

    def apply() -> None:
        state = {}
        for name, (own_name, value) in entries.items():
            if is_elsewhere(value):  # another rank of the pipeline loads it
                state[own_name] = value
                continue
            sharded = isinstance(value, Tensor) and is_sharded(value)
            if isinstance(saved[name], TensorInParts):
                state[own_name] = _filled(value, saved[name])
            else:
                state[own_name] = divided_like(saved[name], value) if sharded else saved[name]
        unwrapped(model).load_state_dict(state)

    return apply


def _filled(value: Any, saved: TensorInParts) -> Tensor:
    """Read a saved tensor into the memory of the model's own tensor, and return the result.

    If elements of the model's tensor share memory, return the whole saved tensor instead.
    """
    if not isinstance(value, Tensor):
        return saved.whole()
    shares = zip(value.stride(), value.shape, strict=True)
    if not is_sharded(value) and any(stride == 0 and size > 1 for stride, size in shares):
        return saved.whole()
    return read_into(saved, value.detach())


def _prepare_optimizer(
    saved: OptimizerState, optimizer: Optimizer, names: Mapping[int, str], source: object
) -> Callable[[], None]:
    named = parameter_names(optimizer, names)
    what = f"the {type(optimizer).__name__} in {source}"
    if len(named) != len(saved.groups):
        raise KeyMismatchError(
            f"{what} has {len(saved.groups)} groups of parameters, this optimizer {len(named)}. "
            "Make the optimizer with the groups that it had when it was saved"
        )
    flat = [
        (name, each)
        for group, its in zip(optimizer.param_groups, named, strict=True)
        for name, each in zip(its, group["params"], strict=True)
    ]
    for number, (group, own_names) in enumerate(zip(saved.groups, named, strict=True)):
        _require_same_keys(
            set(group["params"]), set(own_names), f"group {number} of {what}", "this optimizer"
        )
    for name, parameter in flat:
        for part, tensor in saved.tensors.get(name, {}).items():
            own = optimizer.state.get(parameter, {}).get(part)
            if isinstance(own, Tensor) and own.shape != tensor.shape:
                raise KeyMismatchError(
                    f"{what} has {part} of {name} in the shape {list(tensor.shape)} instead of "
                    f"{list(own.shape)}. Nothing was loaded"
                )

    def apply() -> None:
        state: dict[Any, Any] = dict(saved.values.get("", {}))
        for number, (name, parameter) in enumerate(flat):
            if is_elsewhere(parameter):
                continue
            parts = {
                part: _optimizer_tensor(tensor, parameter, optimizer.state.get(parameter, {}), part)
                for part, tensor in saved.tensors.get(name, {}).items()
            }
            parts |= copy.deepcopy(dict(saved.values.get(name, {})))
            if parts:
                state[number] = parts
        numbers = {name: number for number, (name, _) in enumerate(flat)}
        groups = [
            {**copy.deepcopy(dict(group)), "params": [numbers[name] for name in own_names]}
            for group, own_names in zip(saved.groups, named, strict=True)
        ]
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    return apply


def _optimizer_tensor(
    saved: SavedTensor, parameter: Tensor, existing: Mapping[str, Any], part: str
) -> Tensor:
    """Return a saved tensor on the device of the optimizer's state, not mapped from a file."""
    own = existing.get(part)
    if isinstance(own, Tensor) and own.shape == saved.shape and own.dtype == saved.dtype:
        if isinstance(saved, TensorInParts):
            return read_into(saved, own)
        return own.copy_(divided_like(saved, own))
    if saved.shape == parameter.shape and saved.shape:
        divided = divided_like(saved, parameter)
        return divided.clone() if isinstance(saved, Tensor) and not divided.is_cuda else divided
    return whole_tensor(saved).clone()


def _check_other(snapshot: Snapshot, name: str, target: Any, source: object) -> None:
    if name not in snapshot.states:
        raise CheckpointError(_has_no(name, source))
    if not callable(getattr(target, "load_state_dict", None)):
        raise CheckpointError(
            f"{name} is a {type(target).__name__}, which has no load_state_dict()"
            + explain_stateless(name)
        )


def _restore_others(snapshot: Snapshot, others: Mapping[str, Any], source: object) -> None:
    """Restore all objects, or none if one of them raises."""
    before: dict[str, Any] = {}
    for name, target in others.items():
        before[name] = copy.deepcopy(target.state_dict())
        if not before[name] and not snapshot.states[name]:
            continue  # a disabled GradScaler refuses its own state
        try:
            target.load_state_dict(copy.deepcopy(snapshot.states[name]))
        except Exception as error:
            for changed, state in before.items():
                with suppress(Exception):
                    others[changed].load_state_dict(state)
            raise CheckpointError(
                f"this {type(target).__name__} refuses the state of {name} in {source}: "
                f"{error}. Nothing was loaded"
            ) from error


def _mismatch_table(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return the names and shapes that differ, on lines of their own; empty if none differ."""
    shapes = [{name: _shape_of(each) or () for name, each in side.items()} for side in (own, saved)]
    mismatch = find_mismatch(*shapes)
    return "" if mismatch is None else f"\n{mismatch}"


def _shape_of(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, (Tensor, TensorInParts)) else None


def _require_same_keys(
    saved: Iterable[str], own: Iterable[str], what: str, target: str, table: str = ""
) -> None:
    saved, own = set(saved), set(own)
    if saved == own:
        return
    problems = []
    if own - saved:
        problems.append(f"has no {_list(own - saved)}, which {target} has")
    if saved - own:
        problems.append(f"has {_list(saved - own)}, which {target} does not have")
    raise KeyMismatchError(f"{what} {', and '.join(problems)}. Nothing was loaded{table}")


def _require_same_shapes(
    saved: Mapping[str, Any], own: Mapping[str, Any], what: str, table: str
) -> None:
    wrong = [
        f"{name} in the shape {list(saved[name].shape)} instead of {list(value.shape)}"
        for name, value in own.items()
        if None not in (_shape_of(value), _shape_of(saved[name]))
        and _shape_of(saved[name]) != _shape_of(value)
    ]
    if wrong:
        more = f", and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        raise KeyMismatchError(
            f"{what} has {', '.join(wrong[:_MOST_NAMED])}{more}. Nothing was loaded{table}"
        )


def _list(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _MOST_NAMED} more" if len(ordered) > _MOST_NAMED else ""
    return ", ".join(ordered[:_MOST_NAMED]) + more
