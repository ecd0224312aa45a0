r"""Who connects to node 0's launcher, until it has shown that it belongs to this job.

::

    node 1 ──"<token> 00000001\n"──> node 0        the greeting: 42 bytes, always
           <──"welcome\n"───────────               from here on, messages (see `node_messages`)

Anybody can connect who reaches the port. What has not shown the token costs node 0 one socket and
42 bytes for a few seconds; there are never more than a fixed number of such sockets, and nothing
that they send is parsed.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_WELCOME = b"welcome\n"
_TOKEN_BYTES = 16
_GREETING_BYTES = 2 * _TOKEN_BYTES + 10

# A launcher sends its greeting as soon as it has connected.
_GREETING_SECONDS = 5.0
_MOST_WAITING = 64

# Node 0 may drop a launcher's connection too, in a flood of others: the launcher then tries again.
_JOIN_SECONDS = 30.0
_RETRY_SECONDS = 0.1

_MOST_REPORTED = 8


def new_token() -> str:
    """Return a token for one attempt."""
    return secrets.token_hex(_TOKEN_BYTES)


def join(address: tuple[str, int], token: str, node: int) -> socket.socket:
    """Return a connection to node 0 at which this node has been welcomed.

    Raises:
        OSError: node 0 cannot be reached, or did not welcome this node in time.
    """
    ends = time.monotonic() + _JOIN_SECONDS
    while True:
        left = max(0.1, ends - time.monotonic())
        try:
            connected = socket.create_connection(address, left)
            try:
                connected.sendall(_greeting(token, node))
                _await_welcome(connected)
                return connected
            except BaseException:
                connected.close()
                raise
        except OSError as error:
            if time.monotonic() > ends:
                raise OSError(
                    f"the launcher of node 0 at {address[0]}:{address[1]} did not take this node "
                    f"in within {_JOIN_SECONDS:.0f} s: {error}"
                ) from error
        time.sleep(_RETRY_SECONDS)


def _await_welcome(connected: socket.socket) -> None:
    received = b""
    while received != _WELCOME:
        piece = connected.recv(len(_WELCOME) - len(received))
        if not piece:
            raise ConnectionError("it closed the connection")
        received += piece


def _greeting(token: str, node: int) -> bytes:
    return f"{token} {node:08d}\n".encode()


@dataclass(eq=False)
class Newcomer:
    """A connection that has not shown the token."""

    connected: socket.socket
    address: str
    came: float
    greeting: bytes = b""

    def fileno(self) -> int:
        """Return the socket's, so that a selector takes this object."""
        return self.connected.fileno()


@dataclass
class Newcomers:
    """The connections to node 0 that have not shown the token.

    Attributes:
        listening: where they come.
        token: what they have to show.
        nodes: how many nodes the job has.
    """

    listening: socket.socket
    token: str
    nodes: int
    _waiting: list[Newcomer] = field(default_factory=list)
    _reported: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.listening.setblocking(False)

    def __iter__(self) -> Iterator[Newcomer]:
        return iter(list(self._waiting))

    def accept(self) -> None:
        """Take those that have connected; where too many wait, the oldest goes."""
        for _ in range(_MOST_WAITING):
            try:
                connected, address = self.listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # it has gone again, or this process has too many files open
                if not self._waiting:
                    time.sleep(0.01)  # else the selector would return at once, again and again
                    return
                self._drop(self._waiting[0], f"no room for it ({error.strerror})")
                continue
            connected.setblocking(False)
            if len(self._waiting) >= _MOST_WAITING:
                self._drop(self._waiting[0], f"more than {_MOST_WAITING} connections at a time")
            self._waiting.append(Newcomer(connected, str(address[0]), time.monotonic()))

    def read(self, newcomer: Newcomer, connected: set[int]) -> tuple[socket.socket, int] | None:
        """Return the connection and its node if the greeting is complete and right.

        Args:
            newcomer: who has sent something.
            connected: the nodes that are connected already.
        """
        if newcomer not in self._waiting:  # dropped since it was found ready
            return None
        try:
            piece = newcomer.connected.recv(_GREETING_BYTES - len(newcomer.greeting))
        except BlockingIOError:
            return None
        except OSError:
            piece = b""
        newcomer.greeting += piece
        if not piece:
            self._drop(newcomer, "it closed the connection before its greeting was complete")
        elif len(newcomer.greeting) == _GREETING_BYTES:
            return self._welcome(newcomer, connected)
        return None

    def drop_silent(self) -> None:
        """Drop those whose greeting did not come in time."""
        late = time.monotonic() - _GREETING_SECONDS
        for newcomer in self:
            if newcomer.came < late:
                self._drop(newcomer, f"no greeting within {_GREETING_SECONDS:.0f} s")

    def close(self) -> None:
        """Close the port and whatever waits there."""
        self.listening.close()
        for newcomer in self._waiting:
            newcomer.connected.close()
        self._waiting.clear()

    def _welcome(self, newcomer: Newcomer, connected: set[int]) -> tuple[socket.socket, int] | None:
        number = newcomer.greeting[2 * _TOKEN_BYTES + 1 : -1]
        node = int(number) if number.isdigit() else 0
        is_right = secrets.compare_digest(newcomer.greeting, _greeting(self.token, node))
        if not is_right or node not in range(1, self.nodes):
            self._drop(newcomer, "it does not know this job's token")
        elif node in connected:
            self._drop(newcomer, f"node {node} is connected already")
        else:
            self._waiting.remove(newcomer)
            with contextlib.suppress(OSError):  # an error shows when reading
                newcomer.connected.send(_WELCOME)
            return newcomer.connected, node
        return None

    def _drop(self, newcomer: Newcomer, why: str) -> None:
        """Close a connection, and report its sender once."""
        self._waiting.remove(newcomer)
        newcomer.connected.close()
        if newcomer.address in self._reported or len(self._reported) >= _MOST_REPORTED:
            return
        self._reported.add(newcomer.address)
        more = "; no further sender is reported" if len(self._reported) == _MOST_REPORTED else ""
        sys.stderr.write(
            f"anyrig: dropped a connection from {newcomer.address} to port {self._port} of the "
            f"launchers: {why}. The job goes on{more}\n"
        )

    @property
    def _port(self) -> int:
        return int(self.listening.getsockname()[1])
