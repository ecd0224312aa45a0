"""The result of a check, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """How severe a finding is."""

    GOOD = "good"
    DOUBTFUL = "doubtful"  # the group may run, slowly or not for long
    BAD = "bad"  # the group will not run


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: what was checked, in one or two words.
        level: how severe the finding is.
        text: what was seen.
        advice: what to do; None if nothing.
        host: the node that reports the finding; None if it concerns all nodes.
    """

    check: str
    level: Level
    text: str
    advice: str | None = None
    host: str | None = None


def good(check: str, text: str) -> Finding:
    """Return a finding of level GOOD."""
    return Finding(check, Level.GOOD, text)


def doubtful(check: str, text: str, advice: str) -> Finding:
    """Return a finding of level DOUBTFUL."""
    return Finding(check, Level.DOUBTFUL, text, advice)


def bad(check: str, text: str, advice: str) -> Finding:
    """Return a finding of level BAD."""
    return Finding(check, Level.BAD, text, advice)
