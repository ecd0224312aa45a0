"""The order of the samples that all ranks had, by how the loader divided them.

::

    global batches   0 1 2 3 4 5 │ 6 7        rank 0 had 0 1 2 6 ,  rank 1 had 3 4 5 7
    joined by rank   0 1 2 6 3 4 5 7          indices 0 1 2 4 5 6 3 7 restore the order
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from ....errors import RankMismatchError


def sample_order(loader: Any, counts: Sequence[int]) -> Tensor:
    """Return the indices that bring samples joined rank by rank into their global order.

    Args:
        loader: a loader from `distribute`, in whose last iteration the ranks had the samples, from
            the first batch on; or a loader with a `torch.utils.data.DistributedSampler`, after a
            whole epoch. Samples that this sampler repeats as padding are left out.
        counts: how many samples each rank has.

    Raises:
        RankMismatchError: the loader gave the ranks other numbers of samples.
        TypeError: the loader is neither.
    """
    batches = getattr(loader, "samples_of_batches", None)
    if batches is not None:
        return order_of_batches(batches, counts)
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler):
        raise TypeError(
            f"a {type(loader).__name__} does not say which rank had which samples; pass what "
            "anyrig.distribute() returned, or leave loader= out to have them rank by rank"
        )
    if set(counts) != {sampler.num_samples}:
        raise RankMismatchError(
            f"the ranks gave {list(counts)} samples, but a whole epoch of the DistributedSampler "
            f"gives each {sampler.num_samples}; gather what was computed from all of its batches"
        )
    # The sampler gives each rank one sample in turn, and begins again to fill the last round.
    order = _order_of(torch.arange(sampler.total_size, device="cpu") % len(counts))
    return order[: len(sampler.dataset)]  # type: ignore[arg-type]


def order_of_batches(batches: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
    """Return the order by how many samples of each global batch each rank had."""
    table = torch.tensor([list(batch) for batch in batches], dtype=torch.int64, device="cpu")
    table = table.view(len(batches), len(counts))
    # With `prefetch`, a loader has yielded more batches than were used.
    used = int((table.sum(1).cumsum(0) <= sum(counts)).sum())
    table = table[:used]
    if table.sum(0).tolist() != list(counts):
        raise RankMismatchError(
            f"the ranks gave {list(counts)} samples, but the loader's first batches gave them "
            f"{table.sum(0).tolist()}; gather what was computed from every batch since the loop "
            "began, one entry for each sample"
        )
    ranks = torch.arange(len(counts), device="cpu").repeat(used)
    return _order_of(ranks.repeat_interleave(table.flatten()))


def _order_of(ranks: Tensor) -> Tensor:
    """Return the order by which rank had each sample."""
    joined = torch.argsort(ranks, stable=True)
    return torch.argsort(joined)
