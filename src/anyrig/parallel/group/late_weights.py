"""Weights that gradients get when DDP reduces them, so that a backward pass begins without a wait.

::

    outputs weighted    announce ─ wait ─ * weight ─ backward ─────────── bucket full: all-reduce
    buckets weighted    announce ──────────────────── backward ─ wait ─── * weight: all-reduce

On the CPU, a wait costs what the ranks differ by at this point. With buckets weighted, the ranks
wait only where DDP lets them wait anyway. Both ways give the same gradients if a bucket has what
this backward pass has computed, and nothing else. Each rank may choose its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from .exchange import Exchange


class LateWeights:
    """Weights the buckets of `ddp`, by a communication hook."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        # The hook of the caller, which gets weighted buckets, and its state.
        self.hook: tuple[Callable[..., Any], object] | None = None
        self._group = ddp.process_group
        self._exchange: Exchange | None = None
        self._backward = -1
        self._met: Callable[[], None] | None = None
        # A lambda, because DDP rejects annotations that are texts.
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

    def _reduce(self, bucket: Any) -> Future[Tensor]:
        buffer = bucket.buffer()
        self.meet()
        weight = 1.0 if self._exchange is None else self._exchange.weight
        if self.hook is not None:
            hook, state = self.hook
            buffer.mul_(weight)
            reduced: Future[Tensor] = hook(state, bucket)
            return reduced
        buffer.mul_(weight / self._group.size())
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def is_ready_for_late_weight(parameter: torch.nn.Parameter) -> bool:
    """Return whether this backward pass alone makes the parameter's gradient, and no hook sees it
    before it is weighted. The attributes with hooks are private.
    """
    hooks = parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    return parameter.grad is None and not hooks
