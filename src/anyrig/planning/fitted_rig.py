"""`FittedRig`: what is known of one rig."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..rehearsal.remedies.savings import Savings
from ..virtual.rig import VirtualRig
from .candidate import Candidate, Verdict


@dataclass(frozen=True)
class FittedRig:
    """One row of the answer. None means unknown.

    Attributes:
        rig: the rig.
        tried: the rehearsals, by rising value.
        is_complete: whether the search ended by itself.
        missing_bytes: about how much memory a GPU is short of, if the smallest value does not fit.
        rehearsals: how many rehearsals the row took, with those whose results were kept.
        kept_results: how many of them were kept from earlier runs.
        remedies: what each remedy saves, if they were asked for and the smallest value does not
            fit; or why they could not be rehearsed.
    """

    rig: VirtualRig
    tried: tuple[Candidate, ...]
    is_complete: bool
    missing_bytes: int | None
    rehearsals: int
    kept_results: int
    remedies: Savings | str | None = None

    @property
    def is_too_small(self) -> bool:
        """Whether the program runs out of memory with the smallest value."""
        return self.best is not None and self.best.verdict is Verdict.NO

    @property
    def certain(self) -> Candidate | None:
        """The largest value that fits for certain."""
        return self._largest(Verdict.CERTAIN)

    @property
    def likely(self) -> Candidate | None:
        """The largest value that ran when rehearsed, if it is not certain to fit."""
        found = self._largest(Verdict.LIKELY)
        if found is None or (self.certain and _value(found) < _value(self.certain)):
            return None
        return found

    @property
    def best(self) -> Candidate | None:
        """The certain candidate; without one, the candidate that best shows what is missing."""
        order = (Verdict.CERTAIN, Verdict.LIKELY)
        found = next((one for verdict in order if (one := self._largest(verdict))), None)
        return found or next(iter(self.tried), None)

    def _largest(self, verdict: Verdict) -> Candidate | None:
        found = [one for one in self.tried if one.verdict is verdict]
        return max(found, key=_value, default=None)

    def as_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        best = self.best
        return {
            "rig": str(self.rig),
            "verdict": None if best is None else best.verdict.value,
            "certain_value": None if self.certain is None else self.certain.value,
            "likely_value": None if self.likely is None else self.likely.value,
            "missing_bytes": self.missing_bytes,
            "is_complete": self.is_complete,
            "rehearsals": self.rehearsals,
            "kept_results": self.kept_results,
            "remedies": asdict(self.remedies)
            if isinstance(self.remedies, Savings)
            else self.remedies,
            "tried": [_candidate_as_json(one) for one in self.tried],
        }


def _value(candidate: Candidate) -> int:
    return candidate.value or 0


def _candidate_as_json(candidate: Candidate) -> dict[str, Any]:
    found = candidate.found.as_json()
    del found["rig"], found["facts"], found["missing_bytes"]
    return {
        "value": candidate.value,
        "verdict": candidate.verdict.value,
        "spare_bytes": candidate.spare_bytes,
        **found,
    }


def exit_status(rows: Sequence[FittedRig]) -> int:
    """Return 0 if something fits for certain on a rig, otherwise 1."""
    return 0 if any(row.certain for row in rows) else 1


def order_rows(rows: Sequence[FittedRig]) -> list[FittedRig]:
    """Return the rows, the cheapest first, or the fastest if no price is known.

    Rigs on which nothing fits for certain come last.
    """

    def place(row: FittedRig) -> tuple[bool, float, float]:
        if row.certain is None:
            return True, 0.0, 0.0
        found = row.certain.found
        cost = found.cost_per_million_samples or found.cost_per_million_steps
        seconds = found.step_seconds
        rate = found.samples_per_second or (1 / seconds if seconds else 0.0)
        return False, float("inf") if cost is None else cost, -rate

    return sorted(rows, key=place)
