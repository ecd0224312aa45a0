"""The values with which the models of a run begin."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .joining import join
from .records import RankRecord


def initial_values(ranks: Sequence[RankRecord]) -> dict[str, Tensor]:
    """Return the parameters before the first step; where copies differ, the first rank's.

    Parts that are plain tensors are left out if their shapes do not determine their places in the
    whole: the run on one device then has the values of the script.
    """
    names = dict.fromkeys(name for record in ranks for step in record.steps for name in step.before)
    values = {}
    for name in names:
        pieces = {}
        for record in ranks:
            for step in record.steps:
                if name in step.before:
                    pieces[record.rank] = step.before[name]
        joined = join(pieces, None)
        if joined is not None:
            values[name] = joined.whole
    return values
