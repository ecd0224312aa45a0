"""Weights on the gradients that enter a module from its outputs, and their removal from the
gradients that leave it through its inputs.

::

    forward     x ── take off ─▶ module ── put on ─▶ outputs ─▶ the caller's loss
    backward    ◀─── / weight ◀──────── ◀─ * weight ◀────────── its gradient

    forward     x ── take off ─▶ module ─▶ the loss of the global batch
    backward    ◀─── / ranks  ◀──────── ◀─ * ranks

Inside, gradients are scaled so that the mean over the ranks, which DDP and FSDP2 compute, is the
gradient of the global batch. Outside, they are the gradients of the loss that the caller has: this
rank's own loss, or with `loss=` the loss of the global batch.

Between two spread modules, gradients are always those of this rank's own loss, because the first
module cannot know what its output will be used for:

::

    x ── / ranks ─▶ encoder ── * weight ─▶ hidden ── / weight ─▶ decoder ── * ranks ─▶ global loss

Gradients from a loss to parameters that bypass the outputs have no weight.

On the CPU, DDP's buckets may have the weights instead. A backward pass then begins without a wait:

::

    outputs weighted    announce ─ wait ─ * weight ─ backward ─────────── bucket full: all-reduce
    buckets weighted    announce ──────────────────── backward ─ wait ─── * weight: all-reduce

A wait lasts until the slowest rank has come. With buckets weighted, the ranks wait only where DDP
makes them wait anyway. Both ways give the same gradients if a bucket has what this backward pass
has computed, and nothing else. Each rank may choose its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ...errors import SpreadError
from ...transfer.tree import format_path, list_leaves, map_leaves
from ..backward_callback import queue_callback
from .exchange import Exchange

# Called when a backward pass begins; returns the weight of the outputs' gradients.
Begin = Callable[[], float]


class _PutOn(torch.autograd.Function):
    """The identity. Its outputs are not views, so the caller may change them in place."""

    @staticmethod
    def forward(ctx: Any, begin: Begin, exchange: Exchange | None, *outputs: Tensor) -> Any:
        ctx.begin, ctx.exchange = begin, exchange
        ctx.set_materialize_grads(False)
        return tuple([output.detach() for output in outputs])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        weight = ctx.begin()
        if weight == 1.0:
            return (None, None, *gradients)
        # The mean over zero samples is NaN, and NaN times zero is NaN.
        times = (lambda gradient: gradient * weight) if weight else torch.zeros_like
        return (None, None, *[None if each is None else times(each) for each in gradients])


class _TakeOff(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, follows: bool, given: Tensor) -> Any:
        ctx.exchange, ctx.follows = exchange, follows
        return given.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        exchange = ctx.exchange
        weight = exchange.weight_of_outputs
        if exchange.leads_to_global_loss and not ctx.follows:
            # Divide only by the part of the weight that the buckets do not get.
            part = weight / exchange.weight if exchange.weight else 1.0
            weight = exchange.world_size * part
        return None, None, gradient / weight if weight not in (0.0, 1.0) else gradient


def put_weight_on(output: Any, begin: Begin, exchange: Exchange | None = None) -> Any:
    """Return a module's outputs, whose gradients will enter the module multiplied by ``begin()``.

    `exchange` is that of a forward over ranks. Raise SpreadError as `tensors_with_gradients` does.
    """
    if type(output) is Tensor:  # the usual case
        return _PutOn.apply(begin, exchange, output)[0] if output.requires_grad else output  # type: ignore[no-untyped-call]
    found = tensors_with_gradients(output)
    if not found:
        return output
    weighted = _PutOn.apply(begin, exchange, *found)  # type: ignore[no-untyped-call]
    by_id = dict(zip(map(id, found), weighted, strict=True))
    return map_leaves(output, lambda leaf, path: by_id.get(id(leaf), leaf))


def tensors_with_gradients(tree: Any) -> list[Tensor]:
    """Return the tensors in a structure that require a gradient, each once.

    Raise SpreadError if such tensors are hidden in an object that is not a container.
    """
    found = []
    for leaf, path in list_leaves(tree):
        if isinstance(leaf, Tensor):
            if leaf.requires_grad:
                found.append(leaf)
            continue
        held = [*vars(leaf).values()] if hasattr(leaf, "__dict__") else []
        held += [*leaf.values()] if isinstance(leaf, dict) else []
        if any(isinstance(value, Tensor) and value.requires_grad for value in held):
            raise SpreadError(
                f"the module returned a {type(leaf).__name__} ({format_path(path)}), which holds "
                "tensors that require gradients, but is not a container that anyrig can enter. "
                "Return a dict, a tuple or a dataclass without a method `to`"
            )
    return found


def take_weight_off(given: Tensor, exchange: Exchange) -> Tensor:
    """Return an input, whose gradient will leave the module without the weight."""
    before, has_other = _find_sources(given)
    exchange.before.extend(before)
    exchange.has_mixed_input |= has_other and bool(before)
    same: Tensor = _TakeOff.apply(exchange, bool(before), given)  # type: ignore[no-untyped-call]
    return same


def lead_to_global_loss(exchange: Exchange) -> None:
    """Note that a forward, and the forwards that its inputs came from, lead to a global loss.

    Raise SpreadError if an input was computed from the output of a spread module and from another
    tensor that requires a gradient: their gradients would need different scales.
    """
    pending = [exchange]
    while pending:
        each = pending.pop()
        if each.leads_to_global_loss:
            continue
        each.leads_to_global_loss = True
        if each.has_mixed_input:
            raise SpreadError(
                "an input of a model spread with loss= was computed from the output of another "
                "spread model and from a tensor outside both that requires a gradient, such as a "
                "parameter. Only one of their gradients would be that of the global loss. Make "
                "that parameter a part of one of the spread modules, detach() it, or spread "
                "without loss= and compute the loss from the outputs"
            )
        pending.extend(each.before)


def _find_sources(given: Tensor) -> tuple[list[Exchange], bool]:
    """Return the forwards of spread modules from which a tensor was computed, and whether another
    tensor that requires a gradient took part.
    """
    before: list[Exchange] = []
    has_other = given.grad_fn is None
    pending: list[Any] = [given.grad_fn]
    seen = {None}
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if getattr(type(node), "_forward_cls", None) is _PutOn and node.exchange is not None:
            before.append(node.exchange)
            continue
        has_other |= hasattr(node, "variable")
        pending.extend(parent for parent, _ in node.next_functions)
    return before, has_other


class LateWeights:
    """Weights the buckets of `ddp` in a communication hook."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        # The hook of the caller, which gets weighted buckets, and its state.
        self.hook: tuple[Callable[..., Any], object] | None = None
        self._group = ddp.process_group
        self._exchange: Exchange | None = None
        self._backward = -1
        self._met: Callable[[], None] | None = None
        # A lambda, because DDP rejects annotations that are strings.
        ddp.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))

    def begin(self, exchange: Exchange, met: Callable[[], None]) -> None:
        """Weight the buckets of this backward pass; call ``met()`` before the first of them.

        ``met()`` waits until all ranks have announced themselves.
        """
        exchange.outer_weight = 1.0
        self._exchange, self._met = exchange, met
        self._backward = torch._C._current_graph_task_id()  # see `Buffers.send`

    def weight_in_this_pass(self) -> float | None:
        """Return the weight of this backward pass's buckets; None if outputs are weighted."""
        if self._exchange is None or self._backward != torch._C._current_graph_task_id():
            return None
        return self._exchange.weight

    def meet(self) -> None:
        """Wait for the ranks' announcements, if that has not happened yet."""
        met, self._met = self._met, None
        if met is not None:
            met()

    def end(self) -> None:
        """End the backward pass."""
        self.meet()
        self._exchange = None

    def _reduce(self, bucket: Any) -> Any:
        buffer = bucket.buffer()
        self.meet()
        weight = self.weight_in_this_pass() or 1.0  # not 0: this rank has samples
        if self.hook is not None:
            hook, state = self.hook
            buffer.mul_(weight)
            return hook(state, bucket)
        buffer.mul_(weight / self._group.size())
        # Waits before DDP reads the buffer. `Future.then` would need Python on gloo's thread.
        queue_callback(self._group.allreduce([buffer]).wait)
        ready: Future[Tensor] = Future()
        ready.set_result(buffer)
        return ready
