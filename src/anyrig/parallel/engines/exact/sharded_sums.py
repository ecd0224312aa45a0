"""Sums over logical shards of gradients that FSDP2 divides among the ranks.

FSDP2 reduces the gradients of each block in each backward pass. `_InOrder` takes the place of its
reduce-scatter: the output of a round is the sum over all rounds so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ....errors import SpreadError
from .sums import add_in_order, exchange_slices


class _InOrder:
    """The sums of one block's gradients; has the methods of FSDP2's `ReduceScatter`."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.present = 0

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        total = self.total
        if total is not None and total.shape != output_tensor.shape:
            raise SpreadError(
                "some parameters of a block in shards had a gradient in one logical shard and none "
                "in another, which Shards() cannot add up; use Replicas()"
            )
        given = exchange_slices(input_tensor, group.size())
        self.total = add_in_order(total, given, self.present, output_tensor)


class ShardedSums:
    """The gradients of one step, on ranks that have a part of each parameter.

    Gradients of earlier steps are put aside until `finish`.
    """

    def __init__(self, module: nn.Module) -> None:
        self._blocks: list[_InOrder] = []
        self._layers = [layer for layer in module.modules() if isinstance(layer, FSDPModule)]
        for layer in self._layers:
            comm = _InOrder()
            layer.set_custom_reduce_scatter(cast(Any, comm))  # the base class is private
            # FSDP2 then sums gradients, and neither multiplies nor divides them.
            layer.set_gradient_divide_factor(1.0)
            layer.set_force_sum_reduction_for_comms(True)
            self._blocks.append(comm)

    def reshard(self) -> None:
        """Free what a forward without gradients has gathered: an optimizer step makes it stale."""
        for layer in self._layers:
            layer.reshard()

    def begin(self, parameters: Sequence[nn.Parameter]) -> None:
        """Begin a step."""
        self._parameters = parameters
        self._before = [parameter.grad for parameter in parameters]
        for comm in self._blocks:
            comm.total = None

    def add(self, value: Tensor, present: int) -> None:
        """Add the gradients of `value`, as `ReplicaSums.add` does; every rank has a value."""
        for comm in self._blocks:
            comm.present = present
        self._clear()
        value.backward()  # type: ignore[no-untyped-call]

    def finish(self) -> list[Tensor | None]:
        """Return this rank's part of the sums for each parameter, which are `DTensor`s."""
        found = [parameter.grad for parameter in self._parameters]
        self.abandon()
        return found

    def abandon(self) -> None:
        """Put back the gradients of earlier steps."""
        for parameter, gradient in zip(self._parameters, self._before, strict=True):
            parameter.grad = gradient
        for comm in self._blocks:
            comm.total = None

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
