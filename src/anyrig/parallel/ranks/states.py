"""Broadcasting the parameters and buffers of one rank to all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..backward_callback import queue_callback
from ..batch_statistics import warn_of_written_buffers, written_buffers
from ..plans import Plan

# A message of this size takes much longer than its latency.
_MESSAGE_BYTES = 64 * 2**20


class Packing:
    """Tensors of any dtypes on one device, as the bytes of one message."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        # .data, because writing must not change the version counters: see `Buffers`.
        in_place = [tensor.data for tensor in tensors]
        dense = [each.contiguous() for each in in_place]
        # Tensors with gaps in memory are packed from copies.
        self._copies = [
            pair for pair in zip(in_place, dense, strict=True) if pair[0] is not pair[1]
        ]
        self._bytes = [each.view(-1).view(torch.uint8) for each in dense]
        self._sizes = [len(part) for part in self._bytes]

    def pack(self) -> Tensor:
        """Return a copy of all bytes."""
        for each, copy in self._copies:
            copy.copy_(each)
        return torch.cat(self._bytes)

    def unpack(self, message: Tensor) -> None:
        """Write the bytes of `message` into the tensors."""
        for own, part in zip(self._bytes, torch.split(message, self._sizes), strict=True):
            own.copy_(part)
        for each, copy in self._copies:
            each.copy_(copy)


class Broadcast:
    """A broadcast from rank `source`; `finish` writes the values into the other ranks' tensors,
    which have the same shapes and dtypes.
    """

    def __init__(self, packing: Packing, source: int) -> None:
        self._packing = packing
        self._is_source = dist.get_rank() == source
        self._message = packing.pack()
        self._work: Any = dist.broadcast(self._message, source, async_op=True)

    def finish(self) -> bool:
        """Write the values when they have arrived; return whether another rank has sent them."""
        self._work.wait()
        if not self._is_source:
            self._packing.unpack(self._message)
        return not self._is_source


def broadcast_states(tensors: Iterable[Tensor], source: int) -> None:
    """Give `tensors` the values of rank `source` on every rank; every rank must call this."""
    for packing in packings_of(tensors):
        Broadcast(packing, source).finish()


def packings_of(tensors: Iterable[Tensor]) -> Iterator[Packing]:
    """Yield all tensors in messages whose latency does not matter, and which take little memory."""
    message: list[Tensor] = []
    for tensor in tensors:
        if tensor.numel():
            message.append(tensor)
        if sum(held.nbytes for held in message) >= _MESSAGE_BYTES:
            yield Packing(message)
            message = []
    if message:
        yield Packing(message)


class Buffers:
    """The current buffers of a module. Buffers that are added later are ignored.

    If this rank has written a buffer in place since the last broadcast, the arrival of another
    value counts as a second write: a graph that saved the first value raises in its backward pass,
    as on one device. Otherwise the version counter stays, so two calls may come before one backward
    pass: the kernels that update running statistics do not count their writes.
    """

    def __init__(self, module: nn.Module, plan: Plan) -> None:
        places = {
            id(buffer): (layer._buffers, name)
            for layer in module.modules()
            for name, buffer in layer._buffers.items()
            if buffer is not None and buffer.numel()
        }
        self._places = tuple(places.values())
        self._packed: list[tuple[Tensor | None, int]] = []
        self._packing: Packing | None = None
        self._arriving: Broadcast | None = None
        self._module, self._plan, self._has_arrived = module, plan, False
        self._sent_in = -1  # the backward pass in which that broadcast began
        self.note_versions()

    def __bool__(self) -> bool:
        return bool(self._places)

    def send(self, source: int) -> None:
        """Begin to broadcast the buffers of rank `source`, once in each backward pass."""
        # Private; PyTorch's own FSDP2 reads it from Python.
        backward = torch._C._current_graph_task_id()
        if self._arriving is not None and self._sent_in == backward:
            return
        self.finish()  # what was sent in an earlier backward pass that failed
        self._sent_in = backward
        now = [(each, 0 if each is None else each.data_ptr()) for each in self._buffers()]
        # `is`, because == compares the elements of tensors.
        if self._packing is None or any(
            each is not packed or pointer != before
            for (each, pointer), (packed, before) in zip(now, self._packed, strict=True)
        ):
            self._packed = now
            self._packing = Packing([each for each, _ in now if each is not None])
        if dist.get_rank() == source:
            self.note_versions()
        self._arriving = Broadcast(self._packing, source)
        queue_callback(self.finish)

    def finish(self) -> None:
        """Write the values that are arriving, if any; warn of those that this rank has written."""
        arriving, self._arriving = self._arriving, None
        if arriving is None:
            return
        is_first, self._has_arrived = not self._has_arrived, True
        own = {}
        if is_first:
            own = {name: each.clone() for name, each in written_buffers(self._module).items()}
        if not arriving.finish():
            return
        if is_first:
            warn_of_written_buffers(self._plan, own, written_buffers(self._module))
        for buffer, version in zip(self._buffers(), self._versions, strict=True):
            if buffer is not None and _version(buffer) != version:
                torch.autograd.graph.increment_version(buffer)
        self.note_versions()

    def note_versions(self) -> None:
        """Note that this rank's buffers have the same values as those of all ranks."""
        self._versions = list(map(_version, self._buffers()))

    def _buffers(self) -> list[Tensor | None]:
        return [held[name] for held, name in self._places]


def _version(tensor: Tensor | None) -> int | None:
    return None if tensor is None or tensor.is_inference() else tensor._version
