"""Parameters without a gradient, of which DDP tells one step later and at length."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...errors import SpreadError

# torch/csrc/distributed/c10d/reducer.cpp: ensure_prior_reduction_finished.
_UNFINISHED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_MOST_NAMED = 5


def explain_unfinished(error: RuntimeError, learning: Iterable[str]) -> SpreadError | None:
    """Return what the user is to read beside DDP's error; None if it is another one.

    Args:
        error: raised by DDP's forward.
        learning: names of the parameters that learn, in the module's order, as DDP counts them.
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
        "ddp=dict(find_unused_parameters=True)). If not, see whether every output of the module "
        "that leads to them reaches the loss"
    )
