"""A short form of DDP's error about parameters without a gradient, which comes one step late."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...errors import SpreadError

# torch/csrc/distributed/c10d/reducer.cpp: ensure_prior_reduction_finished.
_UNFINISHED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_MOST_NAMED = 5


def explain_unfinished(error: RuntimeError, learning: Iterable[str]) -> SpreadError | None:
    """Return a short error for DDP's `error`; None if it is about something else.

    `learning` are the names of the parameters that learn, in the module's order, as DDP counts.
    """
    if _UNFINISHED not in str(error):
        return None
    found = _INDICES.search(str(error))
    names = list(learning)
    missing = [int(index) for index in found[1].split()] if found else []
    named = ", ".join(names[index] for index in missing[:_MOST_NAMED] if index < len(names))
    more = len(missing) - _MOST_NAMED
    which = f"{named or 'some parameters'}{f' and {more} more' if more > 0 else ''}"
    return SpreadError(
        f"in the step before this one there was no gradient for {which}, and the ranks wait for "
        "each other's. If steps leave parameters out on purpose: anyrig.spread(…, "
        "ddp=dict(find_unused_parameters=True)). If not, check that every output of the module "
        "that was computed from them reaches the loss"
    )
