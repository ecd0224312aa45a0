"""The option `accumulate=` of `spread`: the gradient of the mean over several backward passes.

::

    a backward pass   begins                 computes         ends
    .grad             old * before / new     + its gradient   * new / (before + new)

`before` counts the samples of the earlier passes, and `new` those of this pass. Outputs are not
weighted, so a loss may contain terms of parameters alone, such as a penalty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from ..errors import SpreadError
from .backward_callback import queue_callback
from .gradient_hooks import use_in_this_pass
from .losses.criterions import recognise
from .losses.even_means import require_even
from .losses.loss import Criterion, reduction_of
from .marks import mark_outputs, tensors_with_gradients
from .parts.samples import count_arguments as count_arguments

# The number of samples, or what a loss was divided by; None if unknown.
Count = Tensor | float | None

_REMEDY = (
    "Give spread a loss= that returns (sum, count), or a criterion such as nn.CrossEntropyLoss(), "
    "and call the model with target="
)
_EXPLAIN = "accumulate=True weights each backward pass by its samples, which is impossible with "


class Accumulation:
    """Makes `.grad` the gradient of the mean over all samples since `.grad` was None."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before, self._by_loss = 0.0, False
        self._rates: list[float] = []  # of the passes before, see `require_even`
        self._pass = -1  # the number of the last backward pass
        # The gradients at the end of that pass, with their versions.
        self._left: dict[Tensor, tuple[TensorWeakRef, int]] = {}

    def follow(self, by_loss: bool, targets: Sequence[Tensor] = ()) -> Callable[[Count], float]:
        """Return a function that a forward's backward pass must call first, with its count.

        `targets` has what means over targets in the forward divide by; entries may be added until
        the backward pass. The function returns the weight of the outputs' gradients, which is 1.
        """
        waiting = [True]

        def begin(new: Count) -> float:
            if torch.is_grad_enabled():
                raise SpreadError(_EXPLAIN + "create_graph=True; leave out one of the two")
            if use_in_this_pass(self._module.parameters()) != "adds":  # torch.autograd.grad
                return 1.0
            this = torch._C._current_graph_task_id()
            if this == self._pass or not waiting:
                raise SpreadError(
                    _EXPLAIN + "several forwards in one backward pass, or several backward passes "
                    "of one forward. Call zero_grad(), then backward() once after each forward"
                )
            waiting.clear()
            self._pass = this
            self._begin(0.0 if new is None else float(new), by_loss, targets)
            return 1.0

        return begin

    def note(self, output: Any, count: Count, by_loss: bool, targets: Sequence[Tensor] = ()) -> Any:
        """Return a forward's outputs; their backward pass will be weighted by `count`."""
        tensors = tensors_with_gradients(output)
        if count is None and tensors:
            raise no_count()
        begin = self.follow(by_loss, targets)
        mark_outputs(tensors, lambda: begin(count))
        return output

    def _gradients(self) -> dict[Tensor, Tensor]:
        return {p: p.grad for p in self._module.parameters() if p.grad is not None}

    def _begin(self, new: float, by_loss: bool, targets: Sequence[Tensor]) -> None:
        old, left = self._gradients(), self._left
        self._left = {}  # if this pass fails, the next one is refused
        before = self._before if old else 0.0
        same = old.keys() == left.keys() and all(
            left[p][0]() is grad and left[p][1] == grad._version for p, grad in old.items()
        )
        mixed = before and by_loss is not self._by_loss
        if (old and not same) or mixed or not 0 <= new < math.inf:
            raise SpreadError(
                _EXPLAIN + "gradients that were changed since the last backward pass, a pass that "
                "failed, calls both with target= and without, or a negative count. Call "
                "zero_grad() after clipping and optimizer.step(), and after an error, without "
                "set_to_none=False"
            )
        rates = [float(each) / new for each in targets] if new else []
        if not before:
            self._rates = rates
        elif rates:
            for one, other in zip_longest(self._rates, rates, fillvalue=0.0):
                require_even([one, other], _REMEDY)
        # The mean over no samples is NaN, so the gradients of this pass are dropped.
        kept = None if new else {p: grad.clone() for p, grad in old.items()}
        if before and new:
            torch._foreach_mul_([*old.values()], before / new)

        def end() -> None:
            with torch.no_grad():
                if kept is not None:
                    for parameter in self._module.parameters():
                        parameter.grad = kept.get(parameter)
                elif before:
                    torch._foreach_mul_([*self._gradients().values()], new / (before + new))
            self._before, self._by_loss = before + new, by_loss
            self._left = {p: (TensorWeakRef(g), g._version) for p, g in self._gradients().items()}

        # Queued twice, to run after DDP, which queues its own callback in the backward pass.
        queue_callback(lambda: queue_callback(end))


def no_count() -> SpreadError:
    """Return the error for a forward whose number of samples is unknown."""
    return SpreadError(
        _EXPLAIN + "a loss that is not reduced, or arguments without samples along dim. Return a "
        "mean or (sum, count) from the loss; pass batches as tensors"
    )


def check_accumulate(accumulate: bool, loss: Criterion | None) -> bool:
    """Return `accumulate`, or raise SpreadError if its gradients would not be exact."""
    if accumulate and loss is not None and reduction_of(loss, recognise(loss)) in ("sum", "none"):
        raise SpreadError(_EXPLAIN + 'this loss; use reduction="mean", or return (sum, count)')
    if accumulate and isinstance(loss, torch.nn.Module) and any(True for _ in loss.parameters()):
        raise SpreadError(_EXPLAIN + "parameters in the loss; make the loss a part of the module")
    return accumulate


def refuse_with_accumulate(
    accumulate: bool, what: str, remedy: str = "leave it out: each backward pass reduces gradients"
) -> None:
    """Raise SpreadError if `accumulate` is used together with `what`."""
    if accumulate:
        raise SpreadError(f"{_EXPLAIN}{what}; {remedy}")
