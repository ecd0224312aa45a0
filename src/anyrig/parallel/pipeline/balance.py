"""Cutting a chain of blocks into stages of equal weight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def cut_evenly(weights: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the number of blocks of each stage, such that the heaviest stage is lightest.

    Every stage gets a block. Of equally good cuts, the one with the earliest cuts is returned.
    """
    sums = [0.0, *accumulate(weights)]
    blocks = len(weights)
    # best[k][i]: the heaviest of k stages that have the first i blocks; cuts[k][i]: the last cut.
    best = [[0.0] + [float("inf")] * blocks]
    cuts: list[list[int]] = [[0] * (blocks + 1)]
    for _ in range(stages):
        row, places = [float("inf")] * (blocks + 1), [0] * (blocks + 1)
        for end in range(1, blocks + 1):
            for cut in range(end):
                heaviest = max(best[-1][cut], sums[end] - sums[cut])
                if heaviest < row[end]:
                    row[end], places[end] = heaviest, cut
        best.append(row)
        cuts.append(places)
    sizes, end = [], blocks
    for places in reversed(cuts[1:]):
        sizes.append(end - places[end])
        end = places[end]
    return tuple(reversed(sizes))
