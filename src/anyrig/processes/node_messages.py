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

import json
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

from .rank_end import Ending, RankEnd

# The longest line is an end: three texts of up to 2**16 characters, each up to 12 bytes in JSON.
MOST_LINE_BYTES = 2**21

_EVENTS = ("alive", "done", "failing", "meeting again", "trouble", "end", "over")


class BadMessageError(ValueError):
    """A line is not a valid message."""


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
        end = None if self.end is None else asdict(self.end) | {"ending": self.end.ending.name}
        return json.dumps(asdict(self) | {"end": end}).encode() + b"\n"


def read_message(line: bytes) -> Message:
    """Return the message of a line without its newline.

    Raises:
        BadMessageError: the line is not a valid message; no other exception is raised.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadMessageError(f"it is not JSON ({type(error).__name__})") from None
    fields = _checked(Message, data, {"end": dict | None})
    if fields["event"] not in _EVENTS:
        raise BadMessageError("its event is unknown")
    if (fields["event"] == "trouble") != (fields["text"] is not None):
        raise BadMessageError("it has a text without trouble, or trouble without a text")
    if (fields["event"] == "end") != (fields["end"] is not None):
        raise BadMessageError("it has an end with another event, or that event without an end")
    return Message(**fields | {"end": None if fields["end"] is None else _end(fields["end"])})


def _end(data: object) -> RankEnd:
    fields = _checked(RankEnd, data, {"ending": str, "absent": list})
    if fields["ending"] not in Ending.__members__:
        raise BadMessageError("its ending is unknown")
    if not all(isinstance(rank, int) for rank in fields["absent"]):
        raise BadMessageError("the ranks it waited for are not numbers")
    converted = {"ending": Ending[fields["ending"]], "absent": tuple(fields["absent"])}
    return RankEnd(**fields | converted)


def _checked(kind: type, data: object, other_types: dict[str, Any]) -> dict[str, Any]:
    """Return `data`, which must have exactly the fields of a dataclass, each of the right type."""
    types = get_type_hints(kind) | other_types
    if not isinstance(data, dict) or data.keys() != types.keys():
        raise BadMessageError(f"it has other fields than a {kind.__name__}")
    for name, value in data.items():
        if not isinstance(value, types[name]):
            raise BadMessageError(f"its {name} is of type {type(value).__name__}")
    return data
