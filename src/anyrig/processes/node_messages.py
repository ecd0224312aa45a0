"""Messages between the launchers of several nodes: one JSON object a line, checked on arrival.

=============  ======================================================
event          meaning
=============  ======================================================
alive          nothing new; sent each second
done           all ranks of the node have ended well
failing        a rank of the node has failed
meeting again  the node has gone to meet another that came late
trouble        the launcher or the node itself failed; `text` says how
end            `end` says how one rank of the node ended
over           every rank's end has been sent; nothing follows
=============  ======================================================
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

from .rank_end import Ending, RankEnd

# The longest line is that of an end: three texts of 64 KiB at most, each byte up to six in JSON.
MOST_LINE_BYTES = 2**21

_EVENTS = ("alive", "done", "failing", "meeting again", "trouble", "end", "over")


class BadMessageError(ValueError):
    """A line is not a message."""


@dataclass(frozen=True)
class Message:
    """One event of one node.

    Attributes:
        node: the node it is about.
        event: one of the table above.
        text: a sentence, of the event "trouble".
        end: how a rank ended, of the event "end".
    """

    node: int
    event: str
    text: str | None = None
    end: RankEnd | None = None

    def line(self) -> bytes:
        """Return the message as `read_message` reads it, with the newline."""
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
        raise BadMessageError("text belongs to trouble, and only to that")
    if (fields["event"] == "end") != (fields["end"] is not None):
        raise BadMessageError("an end belongs to the event of that name, and only to that")
    return Message(**fields | {"end": None if fields["end"] is None else _end(fields["end"])})


def _end(data: object) -> RankEnd:
    fields = _checked(RankEnd, data, {"ending": str, "absent": list})
    if fields["ending"] not in Ending.__members__:
        raise BadMessageError("its ending is unknown")
    if not all(isinstance(rank, int) for rank in fields["absent"]):
        raise BadMessageError("the ranks it waited for are no numbers")
    converted = {"ending": Ending[fields["ending"]], "absent": tuple(fields["absent"])}
    return RankEnd(**fields | converted)


def _checked(kind: type, data: object, other_types: dict[str, Any]) -> dict[str, Any]:
    """Return `data` if it holds exactly the fields of a dataclass, each of the right type."""
    types = get_type_hints(kind) | other_types
    if not isinstance(data, dict) or data.keys() != types.keys():
        raise BadMessageError(f"it has other fields than a {kind.__name__}")
    for name, value in data.items():
        if not isinstance(value, types[name]):
            raise BadMessageError(f"its {name} is of type {type(value).__name__}")
    return data
