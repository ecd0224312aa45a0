"""Messages between the launchers of several nodes: one JSON object per line, checked on arrival.

=============  ======================================================
event          meaning
=============  ======================================================
alive          nothing new; sent every second
done           all ranks of the node have succeeded
failing        a rank of the node has failed
rejoining      the node restarts its ranks to admit a new node
trouble        the launcher or the node itself has failed; see `text`
end            a rank of the node has ended; see `end`
over           every rank's end has been sent; the last message
=============  ======================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from .checked_json import BadMessageError, read_json, write_json
from .rank_end import RankEnd

# The longest message is an end: four strings of up to 2**16 characters, each up to 12 bytes in
# JSON.
MOST_LINE_BYTES = 2**22

_EVENTS = ("alive", "done", "failing", "rejoining", "trouble", "end", "over")


@dataclass(frozen=True)
class Message:
    """One event of one node.

    Attributes:
        node: the node that the message is about.
        event: an event of the table above.
        text: a sentence, with the event "trouble".
        end: how a rank ended, with the event "end".
    """

    node: int
    event: str
    text: str | None = None
    end: RankEnd | None = None

    def line(self) -> bytes:
        """Return the message as a line, with the newline."""
        return write_json(self).encode() + b"\n"


def read_message(line: bytes) -> Message:
    """Return the message of a line without its newline.

    Raises:
        BadMessageError: the line is not a valid message. Even a hostile line raises no other
            exception.
    """
    message = read_json(Message, line)
    if message.event not in _EVENTS:
        raise BadMessageError("its event is unknown")
    if (message.event == "trouble") != (message.text is not None):
        raise BadMessageError('only the event "trouble" must have a text')
    if (message.event == "end") != (message.end is not None):
        raise BadMessageError('only the event "end" must have an end')
    return message
