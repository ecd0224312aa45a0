"""Hooks on the gradients of tensors, and what the current backward pass computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge


def hooks_of(tensor: Tensor) -> Any:
    """Return the hooks on a tensor's gradient by their numbers."""
    return getattr(tensor, "_backward_hooks", None) or {}


def hook_first(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> None:
    """Register a hook on a tensor's gradient that runs before the hooks that exist already."""
    tensor.register_hook(hook)  # type: ignore[no-untyped-call]
    held: Any = tensor._backward_hooks
    # PyTorch calls them as a plain dict has them, whatever `move_to_end` says.
    *before, last = held.items()
    held.clear()
    held.update((last, *before))


def weighted(gradient: Tensor, weight: float) -> Tensor:
    """Return a gradient times its weight."""
    # The mean over zero samples is NaN, and NaN times zero is NaN.
    return gradient * weight if weight else torch.zeros_like(gradient)


def use_in_this_pass(parameters: Iterable[Tensor]) -> Literal["adds", "returns", ""]:
    """Return what the current backward pass does with the gradients of any of these parameters.

    It adds them to `.grad`; or torch.autograd.grad returns them; or it does not compute them.
    """
    nodes = (get_gradient_edge(each).node for each in parameters if each.requires_grad)
    try:
        return "adds" if any(map(torch._C._will_engine_execute_node, nodes)) else ""
    except RuntimeError:  # raised in torch.autograd.grad with respect to a parameter
        return "returns"
