"""Messages between the launchers of several nodes: one JSON object per line, checked on arrival.

=============  ======================================================
event          meaning
=============  ======================================================
alive          nothing new; sent each second
done           all ranks of the node have ended well
failing        a rank of the node has failed
meeting again  the node has gone to meet a node that came late
trouble        the launcher or the node itself failed; see `text`
end            a rank of the node has ended; see `end`
over           every rank's end has been sent; the last message
=============  ======================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from .checked_json import BadMessageError, read_json, write_json
from .rank_end import RankEnd

# The longest line is an end: three texts of up to 2**16 characters, each up to 12 bytes in JSON.
MOST_LINE_BYTES = 2**21

_EVENTS = ("alive", "done", "failing", "meeting again", "trouble", "end", "over")


@dataclass(frozen=True)
class Message:
    """One event of one node.

    Attributes:
        node: the node that the message is about.
        event: see the table above.
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
        BadMessageError: the line is not a valid message; no other exception is raised.
    """
    message = read_json(Message, line)
    if message.event not in _EVENTS:
        raise BadMessageError("its event is unknown")
    if (message.event == "trouble") != (message.text is not None):
        raise BadMessageError("it has a text without trouble, or trouble without a text")
    if (message.event == "end") != (message.end is not None):
        raise BadMessageError("it has an end with another event, or that event without an end")
    return message
