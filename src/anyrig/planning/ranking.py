"""The order of plans of one rig or several."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .candidate import Verdict
from .plan_search import MEMORY, PRICE, PlanSearch
from .tried import Tried


def join_plans(
    searches: Sequence[PlanSearch], deadline_seconds: float | None, samples: float | None
) -> list[Tried]:
    """Return the plans that fit, the best first, by the criterion of the searches.

    Plans that fit for certain come before others, and plans that keep a deadline before both.

    Args:
        searches: the searches of all rigs, which choose by the same criterion.
        deadline_seconds: how long the training run may take; None for no deadline.
        samples: how many samples it has.
    """

    def is_late(one: Tried) -> bool:
        rate = one.candidate.found.samples_per_second
        if deadline_seconds is None or samples is None:
            return False
        return rate is None or samples / rate > deadline_seconds

    def cost(one: Tried) -> float:
        found = one.candidate.found
        if by == MEMORY:
            return one.peak_bytes or math.inf
        if by == PRICE:
            per_step = found.cost_per_million_steps
            return _known(found.cost_per_million_samples, per_step)
        return _known(one.seconds_for(same), None)

    by = next((search.by for search in searches), "")
    same = next((search.samples for search in searches if search.samples), None)
    rows = [one for search in searches for one in search.ranked()]
    return sorted(
        rows, key=lambda one: (is_late(one), one.verdict is not Verdict.CERTAIN, cost(one))
    )


def _known(*values: float | None) -> float:
    return next((value for value in values if value is not None), math.inf)
