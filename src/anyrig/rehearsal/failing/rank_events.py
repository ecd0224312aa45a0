"""The file in which ranks note when an injected failure happened and when steps ended after it.

Each line is an event in JSON. A line is shorter than a page, and is written in one call, so that
lines of several ranks do not mix.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

FAILED, STEPPED = "failed", "stepped"


@dataclass(frozen=True)
class RankEvent:
    """Something that happened in a rank.

    Attributes:
        what: `FAILED`: the injected failure; `STEPPED`: the first step that ended after a start.
        rank: the rank.
        attempt: how often the group had been restarted.
        unix_seconds: when, in seconds since 1970.
    """

    what: str
    rank: int
    attempt: int
    unix_seconds: float


def note_event(path: Path, what: str) -> None:
    """Append an event of this rank to the file."""
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    event = RankEvent(what, int(os.environ["RANK"]), attempt, time.time())
    line = json.dumps(asdict(event)).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def read_events(path: Path) -> list[RankEvent]:
    """Return the events in the order of time; none if there is no file."""
    if not path.exists():
        return []
    events = [RankEvent(**json.loads(line)) for line in path.read_text().splitlines()]
    return sorted(events, key=lambda event: event.unix_seconds)
