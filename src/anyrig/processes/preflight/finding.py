"""The result of a check, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """The severity of a finding."""

    GOOD = "good"
    DOUBTFUL = "doubtful"  # the group may run slowly, or fail later
    BAD = "bad"  # the group will not run


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the subject of the check, in one or two words.
        level: the severity.
        text: the observation.
        advice: what the user can do; None if nothing.
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
