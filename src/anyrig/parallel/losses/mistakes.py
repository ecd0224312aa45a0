"""Explaining mistakes in how a loss or its target is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ...errors import SpreadError
from ..notes import add_note


def require_criterion(loss: object) -> None:
    """Raise SpreadError if `loss` is a class, such as ``nn.MSELoss``, or cannot be called."""
    if isinstance(loss, type):
        prefix = "nn." if getattr(nn, loss.__name__, None) is loss else ""
        arguments = "" if _takes(loss, (), {}) else "…"
        raise SpreadError(
            f"the loss {loss.__name__} is a class, and a loss is called as loss(output, target): "
            f"give an instance, {prefix}{loss.__name__}({arguments})"
        )
    if not callable(loss):
        raise SpreadError(
            f"the loss {loss!r} is of type {type(loss).__name__}, and a loss is called as "
            "loss(output, target): give for example nn.MSELoss()"
        )


def refuse_scattered_loss(loss: object, kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError if ``scattered()`` is called with ``target=`` for the model's loss."""
    if "target" in kwargs and loss is not None:
        raise TypeError(
            "scattered() returns outputs, but target= requests the loss of the batch; call "
            "model(x, target=y), or pass the outputs and y to anyrig.ParallelLoss"
        )


def explain_call(
    error: TypeError, module: nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Add a note to a failed call's error on how a model spread with a loss gets its target.

    Add nothing if the arguments fit the module's forward: then the error has a different cause.
    """
    rest = {name: value for name, value in kwargs.items() if name != "target"}
    forward = module.forward
    if _takes(forward, inputs, rest):
        return
    others = [
        name
        for name in rest
        if _takes(forward, inputs, {key: value for key, value in rest.items() if key != name})
    ]
    if "target" in kwargs or _takes(forward, inputs, {**rest, "target": None}):
        return
    if len(inputs) > 1 and _takes(forward, inputs[:-1], rest):
        mistake = (
            f"does not take the last of {len(inputs)} positional arguments: if it is the target, "
            "write model(x, target=y) instead of model(x, y)"
        )
    elif others:
        mistake = (
            f"does not take {others[0]}=: if it is the target, write model(x, target=y) instead "
            f"of model(x, {others[0]}=y)"
        )
    else:
        return
    add_note(
        error,
        "the model was spread with loss=, which gets the argument target=. "
        f"{type(module).__name__}.forward() {mistake}",
    )


def _takes(function: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*inputs, **kwargs)
    except ValueError:  # written in C, without a signature
        return True
    except TypeError:
        return False
    return True
