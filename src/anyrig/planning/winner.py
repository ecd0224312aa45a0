"""The cheapest or the fastest rig of an answer, and the value with which it is so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..rehearsal.comparison.compared_rig import ComparedRig
from ..rehearsal.comparison.told_apart import error_between
from .candidate import Candidate, Verdict
from .fitted_rig import FittedRig
from .variation import Variation


@dataclass(frozen=True)
class Winner:
    """The best of the candidates that fit for certain, over all rigs and values that were tried.

    Attributes:
        best: the candidate with the lowest cost, or without prices with the shortest time.
        amount: its cost per million samples, or its seconds for a sample; for steps if a rig's
            samples are unknown.
        alike: other rigs whose best candidates cannot be told apart from it, as the times may be
            off by more.
        currency: the currency of the costs; None if there are no prices.
        per_step: whether the amount is for steps.
    """

    best: Candidate
    amount: float
    alike: tuple[str, ...]
    currency: str | None
    per_step: bool

    def describe(self, variation: Variation | None) -> str:
        """Return the answer in a line: which rig, with which value, and how certain that is."""
        value = self.best.value
        given = "" if variation is None or value is None else f" with {variation.describe(value)}"
        unit = "step" if self.per_step else "sample"
        if self.currency is not None:
            answer = f"the cheapest: {self.best.found.rig}{given}"
            amount = f"{self.amount:,.4g} {self.currency} per million {unit}s"
        else:
            answer = f"the fastest: {self.best.found.rig}{given}"
            amount = f"{1 / self.amount:,.4g} {unit}s/s"
        doubt = ""
        if self.alike:
            what = "price of a" if self.currency is not None else "time of a"
            doubt = (
                f"; by the predicted {what} {unit} it cannot be told apart from "
                f"{' and '.join(self.alike)}"
            )
        return f"{answer}, {amount}{doubt}"

    def as_json(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        return {
            "rig": self.best.found.rig,
            "value": self.best.value,
            "by": "speed" if self.currency is None else "price",
            "not_told_apart_from": list(self.alike),
        }


def find_winner(rows: Sequence[FittedRig], currency: str | None) -> Winner | None:
    """Return the best of several rigs.

    None if on fewer than two something fits for certain, or if samples are unknown and steps of
    different values would be compared.

    Args:
        rows: the rigs.
        currency: the currency of the prices, by which to choose; None to choose by speed. Rigs
            without a price do not take part.
    """
    certain = [
        [one for one in row.tried if one.verdict is Verdict.CERTAIN and one.step_seconds]
        for row in rows
    ]
    per_step = any(one.found.samples_per_second is None for row in certain for one in row)
    if per_step and len({one.value for row in certain for one in row}) > 1:
        return None
    amount_of = _amounts(currency, per_step)
    best = []
    for row in certain:
        known = [(amount, one) for one in row if (amount := amount_of(one.found)) is not None]
        if known:
            best.append(min(known, key=lambda each: each[0]))
    if len(best) < 2:
        return None
    amount, winner = min(best, key=lambda each: each[0])
    alike = [
        other.found.rig
        for least, other in best
        if other is not winner and least / amount <= _error(winner.found, other.found)
    ]
    return Winner(winner, amount, tuple(alike), currency, per_step)


def _amounts(currency: str | None, per_step: bool) -> Callable[[ComparedRig], float | None]:
    if currency is not None:
        return lambda one: one.cost_per_million_steps if per_step else one.cost_per_million_samples
    if per_step:
        return lambda one: one.step_seconds
    return lambda one: 1 / one.samples_per_second if one.samples_per_second else None


def _error(first: ComparedRig, second: ComparedRig) -> float:
    """Return by which factor the times of two rigs may be off; 1 if that is unknown."""
    return error_between(first, second) or 1.0
