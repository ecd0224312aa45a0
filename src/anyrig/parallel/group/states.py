"""Parameters and buffers of one rank, brought to all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# What is packed into one message: enough that its latency does not count.
_MESSAGE_BYTES = 64 * 2**20


class Broadcast:
    """Tensors on their way from one rank to all; they change when it is finished.

    Args:
        tensors: the same on each rank, in shape, type and order, on one device.
        source: the rank whose values go to all.
        carrier: a process group that takes tensors of that device; by default the one of all ranks.
    """

    def __init__(self, tensors: Sequence[Tensor], source: int, carrier: Any = None) -> None:
        # The widest first, so that each begins at a multiple of its size.
        self._tensors = sorted(tensors, key=lambda tensor: -tensor.element_size())
        self._is_source = dist.get_rank() == source
        with torch.no_grad():
            self._bytes = torch.cat([_as_bytes(tensor) for tensor in self._tensors])
        self._work: Any = dist.broadcast(self._bytes, source, group=carrier, async_op=True)

    def finish(self) -> None:
        """Wait, and put the values in place."""
        self._work.wait()
        if self._is_source:
            return
        sizes = [tensor.nbytes for tensor in self._tensors]
        for tensor, part in zip(self._tensors, torch.split(self._bytes, sizes), strict=True):
            # Through .data, for a graph that is kept may have saved them.
            tensor.data.copy_(part.view(tensor.dtype).view(tensor.shape))


def broadcast_states(tensors: Iterable[Tensor], source: int, carrier: Any = None) -> None:
    """Give all ranks the values that `tensors` have on one; all call this, and wait."""
    message: list[Tensor] = []
    for tensor in tensors:
        if tensor.numel():
            message.append(tensor)
        if sum(held.nbytes for held in message) >= _MESSAGE_BYTES:
            Broadcast(message, source, carrier).finish()
            message = []
    if message:
        Broadcast(message, source, carrier).finish()


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
