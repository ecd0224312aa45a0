"""Sums of a few numbers over the ranks of one node, by sockets of their own.

Where every core computes, a thread that wakes up interrupts a computation. A sum of gloo wakes up
four threads on two ranks: a rank that began one went on after 3 ms, and with sockets after 0.2 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_char, string_at
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from .....processes.group.direct_messages import DirectMessages
from .....processes.group.membership import Group
from .....processes.group.node_sockets import connect_ranks


class _Room:
    """The bytes that each rank gives, and those that this rank gives to each."""

    def __init__(self, own: bytes, ranks: int) -> None:
        self.sent = (c_char * (ranks * len(own))).from_buffer_copy(own * ranks)
        self.received: Any = bytearray(ranks * len(own))


class SocketSums:
    """Adds up small tensors on the CPU; all ranks begin the same sums in the same order.

    A rank sends its tensor to every other rank, and does not wait for that, as it is small. Every
    rank gets the same bits, as it adds in the order of the ranks.
    """

    def __init__(self, ranks: int, messages: DirectMessages) -> None:
        self._ranks, self._messages = ranks, messages

    def begin(self, tensor: Tensor) -> Callable[[timedelta], None]:
        """Give the other ranks a tensor; return a function that replaces it by the sum.

        The function waits at most as long as it is told, and then raises RuntimeError, as it does
        if another rank has ended.
        """
        own = tensor.contiguous()
        room = _Room(string_at(own.data_ptr(), own.nbytes), self._ranks)
        arrival = self._messages.alltoall(room)

        def finish(limit: timedelta) -> None:
            arrival.wait(limit)
            given = torch.frombuffer(room.received, dtype=tensor.dtype)
            tensor.copy_(given.view(self._ranks, *tensor.shape).sum(0))

        return finish

    def close(self) -> None:
        """End the waits of the other ranks for this one."""
        self._messages.close()


def open_socket_sums(group: Group, name: str, limit: timedelta) -> SocketSums | None:
    """Return sums over all ranks; None unless all compute on the CPU of one node.

    Every rank must call this.

    Args:
        group: the group of all ranks.
        name: the kind of exchange on the group's board.
        limit: how long a wait may take.
    """
    sockets = connect_ranks(group, name)
    if sockets is None:
        return None
    messages = DirectMessages(group.rank, sockets, limit.total_seconds())
    return SocketSums(group.world_size, messages)
