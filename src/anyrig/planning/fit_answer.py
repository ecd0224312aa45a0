"""`FitAnswer`: what fits on each rig, for one combination of given values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .fit import Fit
from .fitted_rig import FittedRig
from .winner import Winner, find_winner


@dataclass(frozen=True)
class FitAnswer:
    """One table.

    Attributes:
        fit: the question.
        rows: what is known of each rig, in the order of the table.
    """

    fit: Fit
    rows: Sequence[FittedRig]

    @property
    def winner(self) -> Winner | None:
        """The cheapest rig, or without prices the fastest; None if there are not two to choose."""
        prices = self.fit.prices
        return find_winner(self.rows, None if prices is None else prices.currency)

    def as_json(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        winner = self.winner
        return {
            "given": {one.variation.name: one.value for one in self.fit.given},
            "rigs": [row.as_json() for row in self.rows],
            "winner": None if winner is None else winner.as_json(),
        }
