"""Gradients that are computed apart from the caller's graph, and delivered in its backward pass.

::

    forward    learning tensors ─▶ a node ─▶ results      what computes them leaves no graph
    backward   gradients of the results ─▶ the node ─▶ gradients of the learning tensors

Steps of schedules and logical shards have computed the gradients before the backward pass begins,
and scale them; a pipeline over ranks may compute them now.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ...errors import SpreadError


class Delivery(ABC):
    """What one node of the caller's graph computes, in the forward and in the backward pass."""

    # Why gradients of its gradients are impossible, and what to do.
    no_graph = "create_graph=True is impossible here"

    @abstractmethod
    def forward(self) -> tuple[list[Tensor], list[bool]]:
        """Return the results, and which of them depend on tensors that learn."""

    @abstractmethod
    def backward(self, upstream: Sequence[Tensor | None], keeps: bool) -> Sequence[Tensor | None]:
        """Return the gradients of the tensors that learn, given the gradients of the results.

        `keeps` says whether another backward pass may follow.
        """

    def delivering(self) -> AbstractContextManager[None]:
        """Return the context of the backward pass."""
        return nullcontext()


def deliver(delivery: Delivery, learning: Sequence[Tensor]) -> list[Tensor]:
    """Return the results, whose backward pass gives `learning` their gradients.

    The backward pass raises SpreadError under ``create_graph=True``, and RuntimeError if it was
    called before without ``retain_graph=True``.
    """
    return list(_Node.apply(delivery, *learning))  # type: ignore[no-untyped-call]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, delivery: Delivery, *_: Tensor) -> tuple[Tensor, ...]:
        ctx.delivery = delivery
        ctx.set_materialize_grads(False)
        results, depend = delivery.forward()
        ctx.mark_non_differentiable(
            *(each for each, depends in zip(results, depend, strict=True) if not depends)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        delivery = ctx.delivery
        if delivery is None:
            raise RuntimeError(
                "the gradients of this step were delivered by an earlier backward pass. Call the "
                "model again, or pass retain_graph=True to the earlier pass"
            )
        if torch.is_grad_enabled():
            raise SpreadError(delivery.no_graph)
        # Private, as there is no public way to learn what `retain_graph` was given to backward();
        # `test_a_second_backward_pass` covers it.
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        with delivery.delivering():
            gradients = delivery.backward(upstream, keeps)
        if not keeps:
            ctx.delivery = None
        return None, *gradients


def scale(
    gradients: Sequence[Tensor | None], factor: Tensor | float, in_place: bool
) -> list[Tensor | None]:
    """Return gradients of one device times a factor, in their dtypes.

    These are the same tensors if `in_place`, which saves memory; autograd takes them over.
    """
    scaled = list(gradients)
    is_known = not isinstance(factor, Tensor) or (in_place and factor.device.type == "cpu")
    if is_known and factor == 1:  # reading it from another device would wait
        return scaled
    kinds: dict[torch.dtype, list[int]] = {}
    for number, gradient in enumerate(gradients):
        if gradient is None:
            continue
        if gradient.layout is torch.strided and (in_place or not hasattr(gradient, "to_local")):
            kinds.setdefault(gradient.dtype, []).append(number)
        else:
            scaled[number] = (gradient * factor).to(gradient.dtype)
    for dtype, numbers in kinds.items():
        wide: Any = factor
        if isinstance(factor, Tensor):
            wide = factor.to(torch.float64 if dtype is torch.float64 else torch.float32)
        chosen = [_local(gradients[number]) for number in numbers]
        if in_place:
            torch._foreach_mul_(chosen, wide)
        else:
            for number, product in zip(numbers, torch._foreach_mul(chosen, wide), strict=True):
                scaled[number] = product
    return scaled


def _local(gradient: Any) -> Tensor:
    """Return this rank's part of a DTensor; other tensors as they are."""
    to_local = getattr(gradient, "to_local", None)
    local: Tensor = gradient if to_local is None else to_local()
    return local
