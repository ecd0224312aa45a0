"""A connection between the launchers of two nodes of a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from .checked_json import BadMessageError
from .node_messages import MOST_LINE_BYTES, Message, read_message


class NodeLink(asyncio.Protocol):
    """One end of the connection.

    Attributes:
        node: the number of the node at the other end.
        received_at: when data last arrived, by `time.monotonic`.
        ended: set when the connection has ended.
    """

    def __init__(
        self,
        node: int,
        on_open: Callable[[NodeLink], object],
        on_message: Callable[[NodeLink, Message], object],
        on_close: Callable[[NodeLink, BadMessageError | None], object],
    ) -> None:
        """Call `on_open` once, `on_message` for each message, and `on_close` once."""
        self.node = node
        self.received_at = time.monotonic()
        self.ended = asyncio.Event()
        self._on_open = on_open
        self._on_message = on_message
        self._on_close = on_close
        self._bad: BadMessageError | None = None
        self._unread = bytearray()
        self._transport: Any = None

    @property
    def has_unsent(self) -> bool:
        """Whether some queued messages have not been sent."""
        return bool(self._transport.get_write_buffer_size())

    def send(self, message: Message) -> None:
        """Queue `message` for the other end."""
        self._transport.write(message.line())

    def finish(self) -> None:
        """Send the queued messages, and continue to read until the other end closes, too.

        Closing a socket with unread data would reset the connection, and the other end would lose
        messages that it has not read (RFC 2525, 2.17).
        """
        self._transport.write_eof()

    def close(self) -> None:
        """Close this end at once."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self.received_at = time.monotonic()
        *lines, rest = data.split(b"\n")
        try:
            for line in lines:
                message = read_message(bytes(self._unread) + line)
                self._unread.clear()
                self._on_message(self, message)
            if len(self._unread) + len(rest) > MOST_LINE_BYTES:
                raise BadMessageError(f"it has more than {MOST_LINE_BYTES} bytes")
            self._unread += rest
        except BadMessageError as error:
            self._bad = error
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.ended.set()
        self._on_close(self, self._bad)
