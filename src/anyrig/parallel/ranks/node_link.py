"""A connection between the launchers of two nodes that trust each other. It never blocks."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from .node_messages import MOST_LINE_BYTES, BadMessageError, Message, read_message

_PIECE_BYTES = 2**16


class NodeLink:
    """One end of the connection.

    Attributes:
        node: who is at the other end.
        heard: when something last came from there, by `time.monotonic`.
    """

    def __init__(self, connected: socket.socket, node: int) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._unread = bytearray()
        self._unsent = b""
        self.node = node
        self.heard = time.monotonic()

    def fileno(self) -> int:
        """Return the socket's, so that a selector takes this object."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for the other end to take it."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Send `message`, or keep it until `flush` can."""
        self._unsent += message.line()
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

    def read(self) -> list[Message] | None:
        """Return the messages that have come, or None if the connection has ended.

        Raises:
            BadMessageError: the other end sent something else.
        """
        try:
            piece = self._socket.recv(_PIECE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not piece:
            return None
        self.heard = time.monotonic()
        if b"\n" not in piece and len(self._unread) + len(piece) > MOST_LINE_BYTES:
            raise BadMessageError(f"it has more than {MOST_LINE_BYTES} bytes")
        *ends, rest = piece.split(b"\n")
        lines = [bytes(self._unread) + ends[0], *ends[1:]] if ends else []
        if lines:
            self._unread.clear()
        self._unread += rest
        return [read_message(line) for line in lines]

    def finish(self, until: float) -> None:
        """Close this end once the other end has read all that was sent and closed its own.

        To close while something is unread resets the connection, and the other end loses what it
        has not read yet (RFC 2525, 2.17).

        Args:
            until: when to close at the latest, by `time.monotonic`.
        """
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while (seconds := until - time.monotonic()) > 0:
                self._socket.settimeout(seconds)
                if not self._socket.recv(_PIECE_BYTES):
                    break
        self.close()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
