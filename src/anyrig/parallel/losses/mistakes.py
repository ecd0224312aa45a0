"""Explaining mistakes in how a loss or its target is given."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ...errors import SpreadError
from ..replicas.failure import add_note


def require_criterion(loss: object) -> None:
    """Raise SpreadError if `loss` is a class, such as ``nn.MSELoss``, or cannot be called."""
    if isinstance(loss, type):
        raise SpreadError(
            f"the loss {loss.__name__} is a class, and a loss is called as loss(output, target): "
            f"give an instance, {_construction_of(loss)}"
        )
    if not callable(loss):
        raise SpreadError(
            f"the loss {loss!r} is of type {type(loss).__name__}, and a loss is called as "
            "loss(output, target): give for example nn.MSELoss()"
        )


def explain_call(
    error: TypeError, module: nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Add to an error how to pass the target to a model that was spread with a loss.

    `inputs` and `kwargs` are the arguments of the model's failed call. No note is added if they fit
    the module's forward, since the error has another cause then.
    """
    mistake = _find_mistake(module, inputs, kwargs)
    if mistake is not None:
        add_note(
            error, f"the model was spread with loss=, which gets the argument target=. {mistake}"
        )


def _find_mistake(
    module: nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    rest = {name: value for name, value in kwargs.items() if name != "target"}
    if _takes(module, inputs, rest):
        return None
    name = type(module).__name__
    if _takes(module, inputs, {**rest, "target": None}):
        return (
            f"{name}.forward() takes an argument of that name too, and does not get it: rename "
            "its argument, or spread the module without loss= if it computes the loss itself"
        )
    if "target" in kwargs:
        return None
    if len(inputs) > 1 and _takes(module, inputs[:-1], rest):
        return (
            f"{name}.forward() does not take the last of {len(inputs)} positional arguments: if it "
            "is the target, write model(x, target=y) for model(x, y)"
        )
    for other in rest:
        if _takes(module, inputs, {key: value for key, value in rest.items() if key != other}):
            return (
                f"{name}.forward() does not take {other}=: if it is the target, write "
                f"model(x, target=y) for model(x, {other}=y)"
            )
    return None


def _takes(module: nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(module.forward).bind(*inputs, **kwargs)
    except ValueError:  # written in C, without a signature
        return True
    except TypeError:
        return False
    return True


def _construction_of(kind: type) -> str:
    prefix = "nn." if getattr(nn, kind.__name__, None) is kind else ""
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):
        return f"{prefix}{kind.__name__}(…)"
    return f"{prefix}{kind.__name__}()"
