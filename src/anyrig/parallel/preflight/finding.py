"""What a check found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """How much a finding matters."""

    GOOD = "good"
    DOUBTFUL = "doubtful"  # it may run, slowly or not for long
    BAD = "bad"  # it will not run


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what was looked at, in one or two words.
        level: how it is.
        text: what was seen.
        advice: what to do; None where nothing is to be done.
        host: the machine it was seen on; None for what concerns all.
    """

    check: str
    level: Level
    text: str
    advice: str | None = None
    host: str | None = None
