"""How the rows of a global batch fall to the ranks: pure arithmetic, the same on every rank."""

from __future__ import annotations

from ...shares.shares import Shares


def rows_of_ranks(shares: Shares, rows: int, singles: bool = True) -> tuple[int, ...]:
    """Return how many of `rows` each rank gets; they sum to `rows`.

    ::

        10 rows, even      4 ranks   3 3 2 2       8 ranks   2 2 1 1 1 1 1 1
        10 rows, 3 : 1     2 ranks   8 2           3 rows, even, 4 ranks   1 1 1 0

    Even shares differ by one row at most, where `Shares.split` does as torch.chunk does and lets
    the last ones go without: a rank without rows has to be waited for all the same. Others are
    those of `Shares.split`. Without `singles`, no rank has one row of several.
    """
    ranks = len(shares.weights)
    if len(set(shares.weights)) == 1 and not shares.row_limits:
        each, left = divmod(rows, ranks)
        counts = tuple(each + (rank < left) for rank in range(ranks))
    else:
        counts = shares.split(rows)
    return counts if singles else shares.join_singles(counts)


def part_of_rank(rows: tuple[int, ...], rank: int) -> slice:
    """Return which rows of a global batch are those of `rank`: one after another, in order."""
    start = sum(rows[:rank])
    return slice(start, start + rows[rank])
