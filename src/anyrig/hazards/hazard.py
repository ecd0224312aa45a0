"""`Hazard`, a mistake that raised no error, with the lines that make it."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any


class HazardKind(Enum):
    """What kind of mistake a hazard is; the value says it in words."""

    OVERWRITTEN = "a value that the backward pass needs was overwritten"
    CUT = "parameters are cut off from the loss"
    NO_GRADIENT = "an optimizer steps without gradients"
    UNOWNED = "parameters belong to no optimizer"
    REPLACED = "an optimizer has parameters that the model no longer has"
    REBUILT = "an optimizer is made again for each step"
    UNSTEPPED_SCALER = "a gradient scaler never lets its optimizer step"
    ACCUMULATED = "gradients of earlier steps are never cleared"
    TRAINING_MODE = "a model is evaluated in training mode"
    DATA_ORDER = "ranks draw their samples from different orders"
    CONTROL_FLOW = "ranks run different backward passes"


class HazardWarning(UserWarning):
    """Warns of a hazard, at the line at which it was noticed."""


@dataclass(frozen=True)
class Place:
    """A line of the program, and its part in a hazard.

    Attributes:
        role: what the line does, such as ``"saved"`` or ``"written"``.
        file: the file; None if the line is unknown.
        number: the number of the line, from 1; 0 if it is unknown.
    """

    role: str
    file: str | None
    number: int = 0

    @property
    def text(self) -> str:
        """The line without indentation; empty if it cannot be read."""
        return "" if self.file is None else linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        if self.file is None:
            return f"{self.role:<10}at an unknown line"
        return f"{self.role:<10}{Path(self.file).name}:{self.number}   {self.text}".rstrip()


@dataclass(frozen=True)
class Hazard:
    """A mistake that raised no error.

    Attributes:
        kind: what kind of mistake it is.
        what: what happened, with the values seen.
        places: the lines that make the mistake, in the order in which they ran.
        remedy: what to write instead.
        rank: the rank that found it; None outside a group of ranks.
    """

    kind: HazardKind
    what: str
    places: tuple[Place, ...]
    remedy: str
    rank: int | None = None

    def place(self, role: str) -> Place | None:
        """Return the line with this role; None if the hazard has none."""
        return next((place for place in self.places if place.role == role), None)

    def as_json(self) -> dict[str, Any]:
        """Return the hazard as values that JSON can hold."""
        places = [
            {"role": place.role, "file": place.file, "line": place.number or None}
            for place in self.places
        ]
        return {
            "kind": self.kind.name.lower(),
            "what": self.what,
            "places": places,
            "remedy": self.remedy,
            "rank": self.rank,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Hazard:
        """Return the hazard that `as_json` has turned into values."""
        places = tuple(
            Place(place["role"], place["file"], place["line"] or 0) for place in values["places"]
        )
        kind = HazardKind[values["kind"].upper()]
        return cls(kind, values["what"], places, values["remedy"], values["rank"])

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}: "
        lines = [f"{rank}{self.what}", *map(str, self.places), f"{'remedy':<10}{self.remedy}"]
        return "\n  ".join(lines)
