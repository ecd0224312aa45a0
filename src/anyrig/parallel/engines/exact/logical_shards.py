"""How a global batch is divided into logical shards, and which rank gets which shards.

::

    samples of a global batch    0 1 2 │ 3 4 │ 5 6 │ 7 8        Exact(4)
    logical shard                  0   │  1  │  2  │  3         the number of ranks plays no part
    1 rank                         0      0     0     0
    2 ranks                        0      1     0     1         rank 0 has samples 0 1 2 5 6

A rank computes its logical shards one after another. In round t, the ranks have the logical shards
``t * ranks`` and following, so sums can be continued from round to round in the order of shards.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....errors import SpreadError


def shard_sizes(samples: int, shards: int) -> list[int]:
    """Return how many of `samples` each logical shard has; the last may have none."""
    each, left = divmod(samples, shards)
    return [each + (shard < left) for shard in range(shards)]


def indices_of_rank(samples: int, shards: int, rank: int, ranks: int) -> list[int]:
    """Return the indices, within a global batch, of a rank's samples, in the rank's order."""
    found: list[int] = []
    start = 0
    for shard, size in enumerate(shard_sizes(samples, shards)):
        if shard % ranks == rank:
            found.extend(range(start, start + size))
        start += size
    return found


def order_of_ranks(samples: int, shards: int, ranks: int) -> list[int]:
    """Return the rank of each sample of a global batch."""
    sizes = shard_sizes(samples, shards)
    return [shard % ranks for shard, size in enumerate(sizes) for _ in range(size)]


def count_present(sizes: Sequence[int], turn: int, ranks: int) -> int:
    """Return how many ranks have samples in a round; these are the first ranks."""
    return sum(size > 0 for size in sizes[turn * ranks : (turn + 1) * ranks])


def check_logical_shards(shards: int, ranks: int) -> int:
    """Return `shards`, or raise SpreadError if the ranks cannot have the same number."""
    if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
        raise SpreadError(
            f"Exact({shards!r}): the number of logical shards must be a positive integer; "
            "12 is usual"
        )
    if shards % ranks:
        counts = [str(count) for count in range(1, shards + 1) if shards % count == 0]
        raise SpreadError(
            f"{shards} logical shards cannot be divided equally among {ranks} ranks. Start "
            f"{', '.join(counts)} ranks; or begin a new training with a multiple of {ranks}: "
            "a different number of logical shards gives different bits"
        )
    return shards
