r"""Connections to node 0's launcher that have not shown yet that they belong to this job.

::

    node 1 ──"<token> 00000001\n"──> node 0        the greeting: 42 bytes, always
           <──"welcome\n"───────────               from here on, messages (see `node_messages`)

Anybody who reaches the port can connect. A connection that has not shown the token costs node 0 one
socket and 42 bytes for a few seconds; the number of such sockets is bounded, and nothing that they
send is parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable

_WELCOME = b"welcome\n"
_TOKEN_BYTES = 16
_GREETING_BYTES = 2 * _TOKEN_BYTES + 10

# A launcher sends its greeting as soon as it has connected.
_GREETING_SECONDS = 5.0
_MOST_WAITING = 64

# Connections that wait to be accepted by node 0's system.
_BACKLOG = 128

# In a flood of connections node 0 may drop a launcher's, too: the launcher then tries again.
_JOIN_SECONDS = 30.0
_RETRY_SECONDS = 0.1

_MOST_REPORTED = 8


def join(address: tuple[str, int], token: str, node: int) -> socket.socket:
    """Return a connection to node 0 at which this node has been welcomed.

    Raises:
        OSError: node 0 cannot be reached, or did not welcome this node in time.
    """
    ends = time.monotonic() + _JOIN_SECONDS
    while True:
        left = max(0.1, ends - time.monotonic())
        try:
            with contextlib.ExitStack() as stack:
                connected = stack.enter_context(socket.create_connection(address, left))
                connected.sendall(_greeting(token, node))
                received = b""
                while received != _WELCOME:
                    piece = connected.recv(len(_WELCOME) - len(received))
                    if not piece:
                        raise ConnectionError("it closed the connection")
                    received += piece
                stack.pop_all()
                return connected
        except OSError as error:
            if time.monotonic() > ends:
                raise OSError(
                    f"the launcher of node 0 at {address[0]}:{address[1]} did not take this node "
                    f"in within {_JOIN_SECONDS:.0f} s: {error}"
                ) from error
        time.sleep(_RETRY_SECONDS)


def _greeting(token: str, node: int) -> bytes:
    return f"{token} {node:08d}\n".encode()


class Newcomers:
    """The connections to node 0 that have not shown the token.

    Attributes:
        token: what they have to show.
        port: the port at which they connect.
        waiting: a task for each connection, the oldest first, and its sender's address.
    """

    def __init__(self, address: str | None, nodes: int) -> None:
        """Listen at `address` (None: every address) for the other nodes of `nodes`."""
        self._listening = socket.create_server((address or "", 0), backlog=_BACKLOG)
        self._listening.setblocking(False)
        self.port = int(self._listening.getsockname()[1])
        self.token = secrets.token_hex(_TOKEN_BYTES)
        self.waiting: dict[asyncio.Task[None], str] = {}
        self._absent = set(range(1, nodes))  # the nodes that have not come
        self._reported: set[str] = set()

    async def admit(self, welcome: Callable[[socket.socket, int], Awaitable[object]]) -> None:
        """Call `welcome` with each connection that shows the token, and its node; never return.

        If too many connections wait, the oldest is dropped.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, (host, *_) = await loop.sock_accept(self._listening)
            except OSError as error:  # it has gone again, or this process has too many files open
                self._drop_oldest(f"no room for it ({error.strerror})")
                await asyncio.sleep(0.01)
                continue
            if len(self.waiting) >= _MOST_WAITING:
                self._drop_oldest(f"more than {_MOST_WAITING} connections at a time")
            task = loop.create_task(self._meet(connected, str(host), welcome))
            self.waiting[task] = str(host)
            task.add_done_callback(lambda task: self.waiting.pop(task, None))
            await asyncio.sleep(0)  # let other tasks run during a flood

    async def _meet(
        self,
        connected: socket.socket,
        host: str,
        welcome: Callable[[socket.socket, int], Awaitable[object]],
    ) -> None:
        try:
            greeting = await asyncio.wait_for(_read_greeting(connected), _GREETING_SECONDS)
            node = self._node_of(greeting)
            with contextlib.suppress(OSError):  # an error shows when reading
                connected.send(_WELCOME)
        except asyncio.TimeoutError:
            connected.close()
            self._report(host, f"no greeting within {_GREETING_SECONDS:.0f} s")
        except ConnectionError as error:
            connected.close()
            self._report(host, str(error))
        except asyncio.CancelledError:
            connected.close()
            raise
        else:
            await welcome(connected, node)

    def _node_of(self, greeting: bytes) -> int:
        """Return the node that a greeting names, and take it as come.

        Raises:
            ConnectionError: the greeting is wrong.
        """
        number = greeting[2 * _TOKEN_BYTES + 1 : -1]
        node = int(number) if number.isdigit() else 0
        if not secrets.compare_digest(greeting, _greeting(self.token, node)):
            raise ConnectionError("it does not know this job's token")
        if node not in self._absent:
            raise ConnectionError(f"node {node} is connected already, or not of this job")
        self._absent.remove(node)
        return node

    async def close(self) -> None:
        """Close the port and whatever waits there."""
        self._listening.close()
        waiting = list(self.waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _drop_oldest(self, why: str) -> None:
        if self.waiting:
            task = next(iter(self.waiting))
            task.cancel()
            self._report(self.waiting.pop(task), why)

    def _report(self, host: str, why: str) -> None:
        """Report each sender once, and only the first few senders."""
        if host in self._reported or len(self._reported) >= _MOST_REPORTED:
            return
        self._reported.add(host)
        more = "; no further sender is reported" if len(self._reported) == _MOST_REPORTED else ""
        sys.stderr.write(
            f"anyrig: dropped a connection from {host} to port {self.port} of the launchers: "
            f"{why}. The job goes on{more}\n"
        )


async def _read_greeting(connected: socket.socket) -> bytes:
    """Return the first bytes, as many as a greeting has, and leave the rest unread."""
    greeting = b""
    while len(greeting) < _GREETING_BYTES:
        piece = b""
        with contextlib.suppress(OSError):
            left = _GREETING_BYTES - len(greeting)
            piece = await asyncio.get_running_loop().sock_recv(connected, left)
        if not piece:
            raise ConnectionError("it closed the connection before its greeting was complete")
        greeting += piece
    return greeting
