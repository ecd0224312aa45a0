r"""Connections to node 0's launcher that have not yet proved that they belong to this job.

::

    node 1 ──"<token> 00000001\n"──> node 0        the greeting: 42 bytes, always
           <──"welcome\n"───────────               then messages (see `node_messages`)

Any process that reaches the port can connect. A connection that has not sent the token costs node 0
one socket and 42 bytes for a few seconds. The number of such sockets is bounded, and their data is
not parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

_WELCOME = b"welcome\n"
_TOKEN_BYTES = 16
_GREETING_BYTES = 2 * _TOKEN_BYTES + 10

# A launcher sends its greeting at once.
_GREETING_SECONDS = 5.0
_MOST_WAITING = 64

# Connections that node 0's system may queue.
_BACKLOG = 128

# In a flood of connections node 0 may drop a launcher's connection; the launcher then retries.
_JOIN_SECONDS = 30.0
_RETRY_SECONDS = 0.1

_MOST_REPORTED = 8


def join(address: tuple[str, int], token: str, node: int) -> socket.socket:
    """Return a connection that node 0 has admitted.

    Raises:
        OSError: node 0 cannot be reached, or did not admit this node in time.
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
                    f"the launcher of node 0 at {address[0]}:{address[1]} did not admit "
                    f"this node within {_JOIN_SECONDS:.0f} s: {error}"
                ) from error
        time.sleep(_RETRY_SECONDS)


def _greeting(token: str, node: int) -> bytes:
    return f"{token} {node:08d}\n".encode()


class Newcomers:
    """The connections to node 0 that have not sent the token.

    Attributes:
        token: the token that a launcher of this job sends.
        port: the port at which node 0 listens.
        waiting: the sender's address of each connection by its task, oldest first.
    """

    def __init__(self, address: str | None, nodes: int) -> None:
        """Listen at `address` (None: every address) for the other nodes of a job of `nodes`."""
        self._listening = socket.create_server((address or "", 0), backlog=_BACKLOG)
        self._listening.setblocking(False)
        self.port = int(self._listening.getsockname()[1])
        self.token = secrets.token_hex(_TOKEN_BYTES)
        self.waiting: dict[asyncio.Task[None], str] = {}
        self._absent = set(range(1, nodes))  # the nodes that have not connected
        self._unproven: set[socket.socket] = set()
        self._reported: set[str] = set()

    async def admit(self, welcome: Callable[[socket.socket, int], Awaitable[object]]) -> None:
        """Call `welcome` with each connection that sends the token, and its node number.

        Runs until cancelled. If too many connections wait, drop the oldest.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, (host, *_) = await self._accept()
            except OSError as error:  # the peer has disconnected, or too many files are open
                self._drop_oldest(f"no file descriptor is free ({error.strerror})")
                await asyncio.sleep(0.01)
                continue
            if len(self.waiting) >= _MOST_WAITING:
                self._drop_oldest(f"more than {_MOST_WAITING} connections at a time")
            task = loop.create_task(self._check_greeting(connected, str(host), welcome))
            self.waiting[task] = str(host)
            self._unproven.add(connected)
            task.add_done_callback(partial(self._forget, connected))
            await asyncio.sleep(0)  # let other tasks run during a flood

    async def _accept(self) -> tuple[socket.socket, Any]:
        """Return a connection and its address.

        `asyncio.loop.sock_accept` loses the connection if it is cancelled just after accepting it.
        """
        loop = asyncio.get_running_loop()
        descriptor = self._listening.fileno()
        while True:
            with contextlib.suppress(BlockingIOError):
                connected, address = self._listening.accept()
                connected.setblocking(False)
                return connected, address
            readable = loop.create_future()
            loop.add_reader(descriptor, _resolve, readable)
            try:
                await readable
            finally:
                loop.remove_reader(descriptor)

    def _forget(self, connected: socket.socket, task: asyncio.Task[None]) -> None:
        self.waiting.pop(task, None)
        if connected in self._unproven:  # cancelled, perhaps before its first line
            self._unproven.remove(connected)
            connected.close()

    async def _check_greeting(
        self,
        connected: socket.socket,
        host: str,
        welcome: Callable[[socket.socket, int], Awaitable[object]],
    ) -> None:
        try:
            greeting = await asyncio.wait_for(_read_greeting(connected), _GREETING_SECONDS)
            node = self._node_of(greeting)
            with contextlib.suppress(OSError):  # a later read raises the error again
                connected.send(_WELCOME)
        except asyncio.TimeoutError:
            self._report(host, f"no greeting within {_GREETING_SECONDS:.0f} s")
        except ConnectionError as error:
            self._report(host, str(error))
        else:
            self._unproven.remove(connected)  # from here on, `welcome` closes it
            await welcome(connected, node)

    def _node_of(self, greeting: bytes) -> int:
        """Return the node that a greeting names, and note that it has connected.

        Raises:
            ConnectionError: the greeting is wrong.
        """
        number = greeting[2 * _TOKEN_BYTES + 1 : -1]
        node = int(number) if number.isdigit() else 0
        if not secrets.compare_digest(greeting, _greeting(self.token, node)):
            raise ConnectionError("it did not send this job's token")
        if node not in self._absent:
            raise ConnectionError(f"node {node} is already connected, or not in this job")
        self._absent.remove(node)
        return node

    async def close(self) -> None:
        """Close the port and all waiting connections."""
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
        more = "; further senders are not reported" if len(self._reported) == _MOST_REPORTED else ""
        sys.stderr.write(
            f"anyrig: dropped a connection from {host} to port {self.port} of the launchers: "
            f"{why}. The job continues{more}\n"
        )


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _read_greeting(connected: socket.socket) -> bytes:
    """Return the bytes of a greeting, and leave further bytes unread."""
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
