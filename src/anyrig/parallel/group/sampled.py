"""A loader that draws samples by their index: each rank loads its part of a global batch only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from ...errors import RankMismatchError
from ..shares.shares import Shares
from .agreed_order import mix_seed
from .board import Board, place_of_caller
from .part import without_rows
from .rank_batches import RankBatches
from .turns import Turns


class SampledDivision:
    """Builds the loader again over a batch sampler of its own, all its other options kept.

    Attributes:
        rows_of_batches: see `DistributedLoader`.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        turns: Turns,
        seed: int,
        empty: Callable[[], Any] | None,
        board: Board | None,
        timeout_seconds: float,
    ) -> None:
        self.rows_of_batches: list[tuple[int, ...]] = []
        self._turns = turns
        self._seed = seed
        self._empty = empty
        self._board = board
        self._timeout_seconds = timeout_seconds
        self._given = loader
        self._rank = 0 if board is None else board.group.rank
        global_batches: Any = loader.batch_sampler
        self._batches = RankBatches(global_batches, self._rank, turns.draw, self._check_order)
        # What each worker's random numbers begin with.
        self._generator = torch.Generator()
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
        return self._hand_out(iter(self._loader), self.rows_of_batches)

    def _hand_out(self, batches: Iterator[Any], rows: list[tuple[int, ...]]) -> Iterator[Any]:
        for batch in batches:
            rows.append(self._batches.drawn.popleft())
            self._turns.use()
            if rows[-1][self._rank] or not sum(rows[-1]):
                yield batch
            else:
                yield without_rows(batch) if self._empty is None else self._empty()

    def _check_order(self, first: Sequence[Any]) -> None:
        """Raise RankMismatchError unless rank 0 begins with the same samples."""
        if self._board is None:
            return
        said = repr(first).encode()
        key = f"{self._turns.name}/first/{self._turns.iteration}"
        if self._rank == 0:
            self._board.post(key, said)
            return
        readers = self._board.group.world_size - 1
        what = "the first batch of a distributed loader"
        of_first = self._board.collect(
            key, readers, self._timeout_seconds, what, 0, place_of_caller()
        )
        if of_first != said:
            raise RankMismatchError(
                f"the sampler of rank {self._rank} begins with {_shorten(said)}, that of rank 0 "
                f"with {_shorten(of_first)}, and all must have one order. anyrig.distribute seeds "
                "PyTorch's, Python's and NumPy's random numbers and a sampler's attribute "
                "`generator`; seed what else this sampler draws from, and give it the same data"
            )


def build_again(
    loader: DataLoader[Any], batches: RankBatches, generator: torch.Generator
) -> DataLoader[Any]:
    """Return a loader like `loader` with another batch sampler and generator.

    Batches come in the order in which they were drawn, whatever ``in_order`` was: else the parts
    of one global batch would come at different steps.
    """
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
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


def _shorten(text: bytes) -> str:
    return text.decode() if len(text) < 80 else f"{text[:76].decode()} …"
