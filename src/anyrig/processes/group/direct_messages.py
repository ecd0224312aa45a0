"""Short messages between ranks that compute on the CPU of one node, by sockets of their own.

::

    gloo      main ─▶ worker ─▶ poller ═══ poller ─▶ worker ─▶ main        six threads wake up
    direct    main ════════════════ socket ═══════════════════ main        none but who waits

Where every core computes, each thread that wakes up interrupts a computation. In a step of 75 ms on
two cores, one message of gloo took 0.8 ms; a message written to a socket takes 0.1 ms.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch

from .membership import Context, open_carrier
from .node_sockets import connect_ranks, group_limit_seconds


class Messages(Protocol):
    """One message for each rank, and room for one from each rank, as arrays of bytes of ctypes."""

    received: Any
    sent: Any


class _Expected(NamedTuple):
    """The messages of one call of `alltoall`, which refers to no socket."""

    messages: Messages
    size: int  # of a message, in bytes
    missing: set[int]  # the ranks whose messages have not arrived

    def write(self, rank: int, message: bytes) -> None:
        """Write the message of `rank` to its place."""
        received = memoryview(self.messages.received).cast("B")
        received[rank * self.size : (rank + 1) * self.size] = message
        self.missing.discard(rank)


class DirectMessages:
    """Sockets to all other ranks.

    Each socket carries messages in the order of the calls of `alltoall`.
    """

    def __init__(self, rank: int, sockets: dict[int, socket.socket], limit_seconds: float) -> None:
        self.rank = rank
        self.limit_seconds = limit_seconds
        self._sockets = sockets
        self._expected: dict[int, deque[_Expected]] = {other: deque() for other in sockets}
        self._partial = dict.fromkeys(sockets, b"")

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the waits of the other ranks for this one."""
        for each in self._sockets.values():
            each.close()

    def alltoall(self, messages: Messages) -> Arrival:
        """Send each rank its message, and return what fills in the messages of all ranks.

        There is no tensor here, so that `torch.compile` compiles nothing of this.
        """
        sent = bytes(messages.sent)
        size = len(sent) // (len(self._sockets) + 1)
        expected = _Expected(messages, size, {*self._sockets})
        expected.write(self.rank, sent[self.rank * size :][:size])
        for rank, to in self._sockets.items():
            self._expected[rank].append(expected)
            with contextlib.suppress(OSError):  # if that rank has ended, `wait` will notice
                to.sendall(sent[rank * size :][:size])
        return Arrival(self, expected)

    def read(self, rank: int, seconds: float) -> None:
        """Read the next message of `rank`; raise OSError if it does not come in time."""
        expected, given = self._expected[rank][0], self._sockets[rank]
        given.settimeout(seconds)
        while missing := expected.size - len(self._partial[rank]):
            data = given.recv(missing)
            if not data:
                raise ConnectionError("Connection closed by peer")
            self._partial[rank] += data
        expected.write(rank, self._partial[rank])
        self._partial[rank] = b""
        self._expected[rank].popleft()


class Arrival:
    """The messages of all ranks, on their way, with a part of the interface of a `Work`."""

    def __init__(self, given: DirectMessages, expected: _Expected) -> None:
        self._given, self._missing = given, expected.missing
        self._ends = time.monotonic() + given.limit_seconds
        self._failed = False

    def wait(self, timeout: timedelta) -> None:
        """Wait for all messages; raise RuntimeError after `timeout`, or if a rank has ended."""
        ends = min(self._ends, time.monotonic() + timeout.total_seconds())
        for rank in sorted(self._missing):
            while rank in self._missing:  # the next message may be of an earlier call
                try:
                    self._given.read(rank, max(1e-4, ends - time.monotonic()))
                except TimeoutError:
                    self._failed = time.monotonic() >= self._ends
                    raise RuntimeError(f"Timed out waiting for rank {rank}") from None
                except OSError as error:
                    self._failed = True
                    raise RuntimeError(f"{error} (rank {rank})") from error

    def is_completed(self) -> bool:
        """Return whether all messages have arrived, or one cannot arrive any more."""
        return self._failed or not self._missing


def open_messages(context: Context) -> None:
    """Open the carrier, and connect the ranks directly if all compute on the CPU of one node.

    Every rank must call this function at the same point. If two ranks cannot connect, no rank uses
    direct messages.
    """
    open_carrier(context)
    if context.has_tried_direct:
        return
    context.has_tried_direct = True
    group = context.group
    sockets = connect_ranks(group, "direct")
    if sockets is not None:
        context.direct = DirectMessages(group.rank, sockets, group_limit_seconds())


def direct_messages_of(context: Context) -> DirectMessages | None:
    """Return the sockets for announcements; None if gloo has to carry them."""
    # Private. `anyrig.memory.survive` stops ranks before a collective, by a kernel at this key,
    # and cannot stop a message of ours; its tests notice if the function changes.
    if torch._C._dispatch_has_kernel_for_dispatch_key("c10d::alltoall_base_", "Autograd"):
        return None
    return context.direct  # type: ignore[no-any-return]
