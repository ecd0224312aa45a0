"""Parameters and buffers of one rank, brought to all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# What is packed into one message: enough that its latency does not count.
_MESSAGE_BYTES = 64 * 2**20


class Packing:
    """Tensors seen as bytes, so that those of all types make one message.

    Args:
        tensors: on one device.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        # Through .data, past the version counters; `Buffers` says what a graph may have saved.
        in_order = [_in_order_of_memory(tensor.data) for tensor in tensors]
        # What has gaps in memory has a copy without.
        self._copies = [
            (each, each.clone(memory_format=torch.contiguous_format))
            for each in in_order
            if not each.is_contiguous()
        ]
        dense = {id(each): copy for each, copy in self._copies}
        self._bytes = [dense.get(id(each), each).view(-1).view(torch.uint8) for each in in_order]
        self._sizes = [len(part) for part in self._bytes]

    def pack(self) -> Tensor:
        """Return all bytes, a copy."""
        for each, copy in self._copies:
            copy.copy_(each)
        return torch.cat(self._bytes)

    def unpack(self, message: Tensor) -> None:
        """Give the tensors the values in a message."""
        for own, part in zip(self._bytes, torch.split(message, self._sizes), strict=True):
            own.copy_(part)
        for each, copy in self._copies:
            each.copy_(copy)


class Broadcast:
    """Tensors on their way from one rank to all; they change when it is finished.

    Args:
        packing: of the same tensors on each rank, in shape, strides, type and order.
        source: the rank whose values go to all.
        on_arrival: called on the other ranks when the values are in place.
    """

    def __init__(
        self, packing: Packing, source: int, on_arrival: Callable[[], None] = lambda: None
    ) -> None:
        self._packing = packing
        self._on_arrival = on_arrival
        self._is_source = dist.get_rank() == source
        self._message = packing.pack()
        self._work: Any = dist.broadcast(self._message, source, async_op=True)

    def finish(self) -> None:
        """Wait, and put the values in place."""
        self._work.wait()
        if not self._is_source:
            self._packing.unpack(self._message)
            self._on_arrival()


def broadcast_states(tensors: Iterable[Tensor], source: int) -> None:
    """Give all ranks the values that `tensors` have on one; all call this, and wait."""
    message: list[Tensor] = []
    for tensor in tensors:
        if tensor.numel():
            message.append(tensor)
        if sum(held.nbytes for held in message) >= _MESSAGE_BYTES:
            Broadcast(Packing(message), source).finish()
            message = []
    if message:
        Broadcast(Packing(message), source).finish()


class Buffers:
    """The buffers of a module, as they are at each moment; which there are does not change.

    Where this rank has written a buffer in place since it last agreed with the others, the arrival
    of another value counts as a second write: if a graph has saved the first value, its backward
    pass raises, as on one device. Where this rank has written nothing, as to running statistics,
    whose kernels leave versions alone, two calls may come before one backward pass.
    """

    def __init__(self, module: nn.Module) -> None:
        places = {
            id(buffer): (layer._buffers, name)
            for layer in module.modules()
            for name, buffer in layer._buffers.items()
            if buffer is not None and buffer.numel()
        }
        self._places = tuple(places.values())
        self._seen: list[tuple[Tensor | None, int]] = []
        self._packing: Packing | None = None
        self.agree()

    def __bool__(self) -> bool:
        return bool(self._places)

    def send(self, source: int) -> Broadcast:
        """Begin to give all ranks the values of one."""
        buffers = [held[name] for held, name in self._places]
        now = [(each, each.data_ptr() if each is not None else 0) for each in buffers]
        if self._packing is None or not _are_same(now, self._seen):
            self._seen = now
            self._packing = Packing([each for each in buffers if each is not None])
        if dist.get_rank() == source:
            self.agree()
        return Broadcast(self._packing, source, self._count_arrival)

    def agree(self) -> None:
        """Note that this rank has the values of all ranks now."""
        self._agreed = [_version(held[name]) for held, name in self._places]

    def _count_arrival(self) -> None:
        for (held, name), agreed in zip(self._places, self._agreed, strict=True):
            buffer = held[name]
            if buffer is not None and _version(buffer) != agreed:
                torch.autograd.graph.increment_version(buffer)
        self.agree()


def _version(tensor: Tensor | None) -> int | None:
    return None if tensor is None or tensor.is_inference() else tensor._version


def _are_same(now: list[tuple[Any, int]], before: list[tuple[Any, int]]) -> bool:
    pairs = zip(now, before, strict=True)
    return all(one[0] is other[0] and one[1] == other[1] for one, other in pairs)


def _in_order_of_memory(tensor: Tensor) -> Tensor:
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda axis: -strides[axis]))
