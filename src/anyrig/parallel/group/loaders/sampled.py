"""A loader that draws samples by their index: each rank loads its part of a global batch only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from ...shares.shares import Shares
from .agreed_order import mix_seed
from .part import without_rows
from .rank_batches import RankBatches
from .turns import Turns


class SampledDivision:
    """Builds the loader again over a batch sampler of its own, all its other options kept.

    Nothing here may refer back to the object itself: the loader's workers are ended in time only
    if it goes when its last user does, not when cycles are collected.

    Attributes:
        rows_of_batches: see `DistributedLoader`.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        batches: RankBatches,
        rank: int,
        turns: Turns,
        seed: int,
        empty: Callable[[], Any] | None,
    ) -> None:
        self.rows_of_batches: list[tuple[int, ...]] = []
        self._given = loader
        self._rank = rank
        self._turns = turns
        self._seed = seed
        self._empty = empty
        self._batches = batches
        # What each worker's random numbers begin with.
        self._generator = torch.Generator("cpu")
        self._loader = build_again(loader, self._batches, self._generator)

    @property
    def shares(self) -> Shares:
        """Those agreed on last."""
        return self._turns.shares

    def batches(self, epoch: int, skip_batches: int) -> Iterator[Any]:
        """Begin an iteration."""
        self._turns.begin()
        for part in (self._given.sampler, self._given.batch_sampler, self._given.dataset):
            tell = getattr(part, "set_epoch", None)
            if callable(tell):
                tell(epoch)
        self._batches.begin(mix_seed(self._seed, epoch), skip_batches)
        self._generator.manual_seed(mix_seed(self._seed, epoch, self._rank))
        self.rows_of_batches = []
        with torch.device("cpu"):  # the loader draws a seed from the generator, whatever is default
            batches = iter(self._loader)
        return self._hand_out(batches, self.rows_of_batches)

    def _hand_out(self, batches: Iterator[Any], rows: list[tuple[int, ...]]) -> Iterator[Any]:
        for batch in batches:
            rows.append(self._batches.drawn.popleft())
            self._turns.use()
            if rows[-1][self._rank] or not sum(rows[-1]):
                yield batch
            else:
                yield without_rows(batch) if self._empty is None else self._empty()


def build_again(
    loader: DataLoader[Any], batches: RankBatches, generator: torch.Generator
) -> DataLoader[Any]:
    """Return a loader like `loader` with another batch sampler and generator.

    Batches come in the order in which they were drawn, whatever ``in_order`` was: else the parts
    of one global batch would come at different steps.
    """
    collates = loader.batch_sampler is not None
    return DataLoader(
        loader.dataset,
        batch_size=1 if collates else None,  # 1 is what stands for none beside a batch sampler
        sampler=None if collates else batches,
        batch_sampler=batches if collates else None,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory_device=loader.pin_memory_device,
    )
