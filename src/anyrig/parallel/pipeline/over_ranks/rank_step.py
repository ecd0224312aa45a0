"""A call that learns, as one node of the caller's graph on each rank.

::

                   model(x, target=y)                    loss.backward()
    1f1b and so on all tasks; gradients of the sum       gradients x upstream,
                   of the losses / expected count        x expected count / count
    gpipe, outputs all forward tasks                     all backward tasks

Every rank has the node, so that every rank takes part in a backward pass, whichever stages it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ....errors import SpreadError


class RankStep(ABC):
    """What happens on this rank in one call and its backward pass."""

    @abstractmethod
    def forward(self) -> tuple[list[Tensor], list[bool]]:
        """Return the results, and which of them depend on tensors that learn."""

    @abstractmethod
    def backward(self, upstream: Sequence[Tensor | None], keeps: bool) -> list[Tensor | None]:
        """Return the gradients of the tensors that learn, given the gradients of the results.

        `keeps` says whether another backward pass may follow.
        """


def put_in_graph(
    step: RankStep, learning: Sequence[Tensor], failing: Callable[[], AbstractContextManager[None]]
) -> list[Tensor]:
    """Return the results of a step, whose backward pass gives `learning` their gradients.

    The backward pass runs in the context that ``failing()`` returns.
    """
    # The anchor makes the results need gradients even on a rank that has nothing to learn.
    anchor = torch.zeros((), requires_grad=True, device="cpu")
    return list(_Node.apply(step, failing, anchor, *learning))  # type: ignore[no-untyped-call]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, step: RankStep, failing: Any, anchor: Tensor, *learning: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.step, ctx.failing = step, failing
        ctx.set_materialize_grads(False)
        results, depend = step.forward()
        ctx.mark_non_differentiable(
            *(each for each, depends in zip(results, depend, strict=True) if not depends)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise SpreadError(
                "create_graph=True is impossible in a pipeline over ranks, as other ranks have "
                "parts of the graph; use one process for several devices, with schedule='gpipe'"
            )
        if ctx.step is None:
            raise RuntimeError(
                "the gradients of this step were delivered by an earlier backward pass. Call the "
                "model again, or pass retain_graph=True to the earlier pass"
            )
        # Private, as there is no public way to learn what `retain_graph` was given to backward();
        # `case_a_second_backward_pass` covers it.
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        with ctx.failing():
            gradients = ctx.step.backward(upstream, keeps)
        if not keeps:
            ctx.step = None
        return None, None, None, *gradients
