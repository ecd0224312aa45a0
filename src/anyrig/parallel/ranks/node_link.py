"""A connection between the launchers of two machines: one JSON object a line, never blocking."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

# A machine says how its ranks ended in one line; a longer one is nobody's of ours.
_MOST_BYTES = 2**26
_PIECE_BYTES = 2**16


class NodeLink:
    """One end of the connection.

    Attributes:
        node: who is at the other end, once known.
        heard: when something last came from there, of `time.monotonic`.
    """

    def __init__(self, connected: socket.socket, node: int | None = None) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._unread = b""
        self._unsent = b""
        self.node = node
        self.heard = time.monotonic()

    def fileno(self) -> int:
        """Return the socket's, so that `select` takes this object."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for the other end to take it."""
        return bool(self._unsent)

    def send(self, message: dict[str, Any]) -> None:
        """Send `message`, or keep it until `flush` can."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send as much as the other end takes now. An error shows when reading."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""

    def read(self) -> list[dict[str, Any]] | None:
        """Return the messages that have come, or None if the connection has ended."""
        try:
            piece = self._socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._unread += piece
        if not piece or len(self._unread) > _MOST_BYTES:
            return None
        self.heard = time.monotonic()
        *lines, self._unread = self._unread.split(b"\n")
        try:
            return [json.loads(line) for line in lines]
        except ValueError:  # somebody else's words
            return None

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
