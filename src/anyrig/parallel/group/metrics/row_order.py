"""In which order the rows of all ranks were samples, if a loader says how it divided them.

::

    global batches   0 1 2 3 4 5 │ 6 7        rank 0 had 0 1 2 6 ,  rank 1 had 3 4 5 7
    joined by rank   0 1 2 6 3 4 5 7          takes 0 1 2 4 5 6 3 7 to be in order
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from ....errors import RankMismatchError


def row_order(loader: Any, rows: Sequence[int]) -> Tensor:
    """Return the places, in what was joined rank by rank, of the samples in their global order.

    Args:
        loader: what `distribute` returned, of whose last iteration the rows are, from its first
            batch on; or a loader with a `torch.utils.data.DistributedSampler`, after a whole
            epoch. The samples by which that one pads are left out.
        rows: how many each rank has.

    Raises:
        RankMismatchError: the loader gave the ranks other numbers of rows.
        TypeError: it is no such loader.
    """
    batches = getattr(loader, "rows_of_batches", None)
    if batches is not None:
        return order_of_batches(batches, rows)
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler):
        raise TypeError(
            f"a {type(loader).__name__} does not say which rank had which samples; pass what "
            "anyrig.distribute() returned, or leave loader= out to have them rank by rank"
        )
    if set(rows) != {sampler.num_samples}:
        raise RankMismatchError(
            f"the ranks gave {list(rows)} rows, but a whole epoch of the DistributedSampler gives "
            f"each {sampler.num_samples}; gather what was computed from all of its batches"
        )
    # It deals the samples out one by one, and begins anew to fill the last round.
    order = _order_of(torch.arange(sampler.total_size, device="cpu") % len(rows))
    return order[: len(sampler.dataset)]  # type: ignore[arg-type]


def order_of_batches(batches: Sequence[Sequence[int]], rows: Sequence[int]) -> Tensor:
    """Return the order from how many rows each rank had of each global batch."""
    table = torch.tensor([list(batch) for batch in batches], dtype=torch.int64, device="cpu")
    table = table.view(len(batches), len(rows))
    # A loader is ahead of its use under `prefetch`: as many batches count as explain the rows.
    used = int((table.sum(1).cumsum(0) <= sum(rows)).sum())
    table = table[:used]
    if table.sum(0).tolist() != list(rows):
        raise RankMismatchError(
            f"the ranks gave {list(rows)} rows, and these are not those of the loader's first "
            f"batches, which gave them {table.sum(0).tolist()}; gather what was computed from "
            "every batch since the loop began, a row for each sample"
        )
    ranks = torch.arange(len(rows), device="cpu").repeat(used)
    return _order_of(ranks.repeat_interleave(table.flatten()))


def _order_of(ranks: Tensor) -> Tensor:
    """Return the order from which rank had each sample."""
    samples = torch.argsort(ranks, stable=True)  # as they are joined, rank by rank
    return torch.argsort(samples)
