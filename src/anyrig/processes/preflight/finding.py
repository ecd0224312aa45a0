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


def good(check: str, text: str) -> Finding:
    """Return a finding after which nothing is to be done."""
    return Finding(check, Level.GOOD, text)


def doubtful(check: str, text: str, advice: str) -> Finding:
    """Return a finding with which it may run, slowly or not for long."""
    return Finding(check, Level.DOUBTFUL, text, advice)


def bad(check: str, text: str, advice: str) -> Finding:
    """Return a finding with which it will not run."""
    return Finding(check, Level.BAD, text, advice)
