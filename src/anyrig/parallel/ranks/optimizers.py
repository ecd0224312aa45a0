"""The steps of optimizers whose parameters are those of a model over ranks.

LBFGS and its line search decide by the loss of a closure how far to go and when to stop. Every rank
gets the loss of the global batch, or the ranks would go different ways. Optimizers that cannot
compute with shards are refused before their first step, and so is a step of shards without
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...errors import SpreadError
from ...processes.group.membership import Context, current_context, current_group
from ..gradient_hooks import hooks_of
from .passes import GradientHook

Closure = Callable[[], Any]


# DTensor has no in-place operation that they need; tried with PyTorch 2.11 to 2.15.
_NOT_IN_SHARDS = (torch.optim.LBFGS, torch.optim.Adafactor, torch.optim.Rprop)


def follow_optimizers(context: Context) -> None:
    """Follow the steps of all optimizers of this process; later calls have no effect.

    The steps of optimizers of other parameters stay as they are.
    """
    if not context.follows_optimizers:
        context.follows_optimizers = True
        register_optimizer_step_pre_hook(_prepare_step)


class _WholeClosure:
    """Calls a closure, and returns the mean of all ranks' losses, weighted by their samples."""

    def __init__(self, closure: Closure, context: Context) -> None:
        self._closure, self._context = closure, context

    def __call__(self) -> Any:
        """Return the loss of the global batch, detached; None if the closure returns none."""
        loss = self._closure()
        if not isinstance(loss, (Tensor, float)):
            return loss
        group, last = self._context.group, self._context.last_forward
        samples = 1 if last is None else last.exchange.samples or 0
        # A mean over no samples is NaN.
        value = loss.detach() if isinstance(loss, Tensor) else loss
        own = float(value) * samples if samples else 0.0
        sums = torch.tensor([own, samples], dtype=torch.float64, device="cpu")
        self._context.gloo.allreduce([sums]).wait()
        whole = sums[0] / sums[1]
        if isinstance(loss, float):
            return float(whole)
        return whole.to(group.device if loss.is_cuda else loss.device, loss.dtype)


def _prepare_step(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of an optimizer's step with the closure of all ranks."""
    if isinstance(optimizer, _NOT_IN_SHARDS) and any(map(_is_shard, _parameters_of(optimizer))):
        raise SpreadError(
            f"{type(optimizer).__name__} cannot compute with parameters in shards: PyTorch's "
            "DTensor has not all operations that it needs. Use another optimizer, such as AdamW; "
            "or replicas: anyrig.spread(module, plan=anyrig.Replicas())"
        )
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        _require_gradients_of_shards(optimizer)
    if closure is None or isinstance(closure, _WholeClosure) or current_group() is None:
        return None
    context = _context_of(optimizer)
    if context is None:
        return None
    whole = _WholeClosure(closure, context)
    if "closure" in kwargs:
        return args, {**kwargs, "closure": whole}
    return (args[0], whole, *args[2:]), kwargs


def _require_gradients_of_shards(optimizer: torch.optim.Optimizer) -> None:
    """Raise SpreadError for an optimizer of shards without gradients, if no backward pass began.

    ``backward(inputs=…)`` computes nothing for shards, and says nothing.
    """
    if any(each.grad is not None or not _is_shard(each) for each in _parameters_of(optimizer)):
        return
    last = current_context().last_forward if current_group() is not None else None
    if last is not None and not last.exchange.has_backward:
        raise SpreadError(
            f"no parameter of this {type(optimizer).__name__} has a gradient, so the step would "
            "change nothing. The parameters are in shards, which are not in the graph: "
            "backward(inputs=…) and torch.autograd.grad() do not reach them. Call loss.backward(); "
            "torch.autograd.grad() with respect to an input works"
        )


def _is_shard(parameter: Tensor) -> bool:
    from torch.distributed.tensor import DTensor  # takes long to import

    return isinstance(parameter, DTensor)


def _context_of(optimizer: torch.optim.Optimizer) -> Context | None:
    """Return the group of the model over ranks whose parameters an optimizer has, or None."""
    for parameter in _parameters_of(optimizer):
        for hook in hooks_of(parameter).values():
            passes = hook.passes() if isinstance(hook, GradientHook) else None
            if passes is not None:
                return passes.context
    return None


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
