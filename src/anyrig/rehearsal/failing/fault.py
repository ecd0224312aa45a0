"""`Fault`: which rank fails, when and how, and its text form."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import ReportError

KILL, SLOW, LINK = "kill", "slow", "link"
_EXAMPLE = "write for example rank=3,step=5 or rank=3,step=5,slow=2.5 or rank=3,step=5,link"
_MOST_SHOWN = 60
_LARGEST_NUMBER = 10**9


@dataclass(frozen=True)
class Fault:
    """An injected failure.

    Attributes:
        rank: the rank that fails.
        step: the number of its step, counted from 1, at whose end it fails: when all gradients are
            there, and before the optimizer takes the step.
        kind: `KILL`: the process is killed; `SLOW`: its GPU computes more slowly from then on;
            `LINK`: its connections to other ranks are cut.
        factor: how many times as long its kernels take; 1 if it is not slow.
    """

    rank: int
    step: int
    kind: str = KILL
    factor: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Return the failure that `text` describes, such as ``rank=3,step=5,slow=2.5``.

        Raises:
            ReportError: the text does not describe a failure.
        """
        found: dict[str, str] = {}
        for part in text.split(","):
            name, equals, value = part.strip().partition("=")
            takes_value = name in ("rank", "step", SLOW)
            if name not in ("rank", "step", KILL, SLOW, LINK) or takes_value != bool(equals):
                raise ReportError(f"{_shown(part)} is not part of a failure; {_EXAMPLE}")
            if name in found:
                raise ReportError(f"{name} is named twice; {_EXAMPLE}")
            found[name] = value
        kinds = [kind for kind in (KILL, SLOW, LINK) if kind in found]
        if len(kinds) > 1:
            raise ReportError(f"a rank fails in one way, not by {' and '.join(kinds)}; {_EXAMPLE}")
        for name in ("rank", "step"):
            if name not in found:
                raise ReportError(f"no {name} is given; {_EXAMPLE}")
        return cls(
            _read_number("rank", found["rank"], 0),
            _read_number("step", found["step"], 1),
            kinds[0] if kinds else KILL,
            _read_factor(found[SLOW]) if SLOW in found else 1.0,
        )

    def __str__(self) -> str:
        kind = f"{SLOW}={self.factor:g}" if self.kind == SLOW else self.kind
        return f"rank={self.rank},step={self.step},{kind}"


def _read_number(name: str, text: str, least: int) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST_NUMBER)):
        number = int(text)
        if least <= number <= _LARGEST_NUMBER:
            return number
    raise ReportError(
        f"{name} is {_shown(text)}, and must be a whole number of at least {least}; {_EXAMPLE}"
    )


def _read_factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1 < factor <= _LARGEST_NUMBER:
        raise ReportError(
            f"{SLOW} is {_shown(text)}, and must be a factor above 1, as in slow=2.5; {_EXAMPLE}"
        )
    return factor


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]!r}…"
