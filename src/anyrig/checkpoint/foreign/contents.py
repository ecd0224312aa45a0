"""Find the model's tensors in an object that a program saved, and keep the rest apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointDamagedError, CheckpointError

# The keys under which programs keep the model in a larger dict, the most specific first.
MODEL_KEYS = ("model_state_dict", "state_dict", "model", "module", "net", "network", "weights")

# An expanded tensor may have more elements than its storage; a forged tensor may claim any number.
_MOST_REPEATS = 1000
_MOST_REPEATED_BYTES = 2**30


@dataclass(frozen=True)
class Contents:
    """The model's tensors and the rest of a saved object.

    Attributes:
        tensors: the model's tensors by name.
        extra: everything else, by its key.
        key: the key under which the tensors were found, or None for the object itself.
    """

    tensors: dict[str, Tensor]
    extra: dict[str, Any]
    key: str | None


def divide_contents(value: Any, where: str, key: str | None = None) -> Contents:
    """Divide a saved object into the model's tensors and the rest.

    Args:
        value: a state dict, or a dict that holds a state dict under some key.
        where: the file, for messages.
        key: the key of the state dict; by default a usual key such as ``"model"``, or the only
            key whose value is a state dict.

    Raises:
        CheckpointError: there is no state dict, or there are several.
        CheckpointDamagedError: a tensor has a shape that its bytes cannot fill.
    """
    contents = _divide(value, where, key)
    _check_extents(contents.tensors, where)
    return contents


def _divide(value: Any, where: str, key: str | None) -> Contents:
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise CheckpointError(
            f"{where} holds a {kind}, not a dict of tensors. Save model.state_dict() instead"
        )
    if key is not None:
        if not _is_state_dict(value.get(key)):
            raise CheckpointError(f"{where} has no state dict under {key!r}; {_describe(value)}")
        return _take(value, key)
    if _is_state_dict(value):
        return Contents(*_tensors_and_rest(value), None)
    keys = [each for each in value if isinstance(each, str) and _is_state_dict(value[each])]
    usual = [each for each in MODEL_KEYS if each in keys]
    if usual or len(keys) == 1:
        return _take(value, (usual or keys)[0])
    if keys:
        raise CheckpointError(
            f"{where} holds several state dicts: {', '.join(map(repr, keys))}. Choose one: "
            f"key={keys[0]!r}, or --key {keys[0]} on the command line"
        )
    tensors, rest = _tensors_and_rest(value)
    if not tensors:
        raise CheckpointError(f"{where} holds no named tensors; {_describe(value)}")
    return Contents(tensors, rest, None)


def _check_extents(tensors: Mapping[str, Tensor], where: str) -> None:
    """Raise if a tensor repeats few elements so often that copying it would fill the memory."""
    for name, each in tensors.items():
        if each.layout is not torch.strided or each.device.type != "cpu":
            continue
        stored_bytes = each.untyped_storage().nbytes()
        if each.nbytes > _MOST_REPEATED_BYTES and each.nbytes > _MOST_REPEATS * stored_bytes:
            raise CheckpointDamagedError(
                f"{where} is damaged: {name!r} of shape {tuple(each.shape)} repeats the same "
                f"{stored_bytes} bytes"
            )


def _take(value: Mapping[Any, Any], key: str) -> Contents:
    tensors, rest = _tensors_and_rest(value[key])
    extra = {str(each): value[each] for each in value if each != key}
    return Contents(tensors, extra | ({key: rest} if rest else {}), key)


def _tensors_and_rest(value: Mapping[Any, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {
        name: each
        for name, each in value.items()
        if isinstance(name, str) and isinstance(each, Tensor)
    }
    return tensors, {str(name): value[name] for name in value if name not in tensors}


def _is_state_dict(value: Any) -> bool:
    """Return whether a value is a dict of named tensors, and of nothing else but extra states."""
    return (
        isinstance(value, dict)
        and any(isinstance(each, Tensor) for each in value.values())
        and all(
            isinstance(name, str) and (isinstance(each, Tensor) or name.endswith("_extra_state"))
            for name, each in value.items()
        )
    )


def _describe(value: Mapping[Any, Any]) -> str:
    shown = ", ".join(f"{key!r:.60} ({type(value[key]).__name__})" for key in [*value][:8])
    return f"it holds {shown}" + (" and more" if len(value) > 8 else "") if value else "it is empty"
