"""A loader that draws samples by their index: each rank loads its part of a global batch only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, Subset

from ....errors import RankMismatchError
from .agreed_order import draw_alike, mix_seed
from .part import without_rows
from .turns import Turns, part_of_rank

_SHOWN = 80


class SampledDivision:
    """Builds the loader again over a batch sampler of its own, all its other options kept.

    Nothing here may refer back to the object itself: the loader's workers are ended in time only
    if it goes when its last user does, not when cycles are collected.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        global_batches: Iterable[Sequence[Any]],
        turns: Turns,
        seed: int,
        empty: Callable[[], Any] | None,
    ) -> None:
        self.turns = turns
        self._given = loader
        self._seed = seed
        self._empty = empty
        self._batches = RankBatches(global_batches, turns, loader.dataset)
        # What each worker's random numbers begin with.
        self._generator = torch.Generator("cpu")
        self._loader = _build_again(loader, self._batches, self._generator)

    def batches(self, epoch: int, skip_batches: int) -> Iterator[Any]:
        """Begin an iteration."""
        given = self._given
        self.turns.begin(epoch, given.sampler, given.batch_sampler, given.dataset)
        self._batches.begin(mix_seed(self._seed, epoch), skip_batches)
        self._generator.manual_seed(mix_seed(self._seed, epoch, self.turns.rank))
        with torch.device("cpu"):  # the loader draws a seed from the generator, whatever is default
            batches = iter(self._loader)
        return self._hand_out(batches, self.turns.rows_of_batches)

    def _hand_out(self, batches: Iterator[Any], rows: list[tuple[int, ...]]) -> Iterator[Any]:
        for batch in batches:
            rows.append(self._batches.drawn.popleft())
            self.turns.use()
            if rows[-1][self.turns.rank] or not sum(rows[-1]):
                yield batch
            else:
                yield without_rows(batch) if self._empty is None else self._empty()


class RankBatches(Sampler[list[Any]]):
    """Draws the global batches of a sampler, and yields this rank's indices of each.

    A rank without rows in a batch is given its first index: an empty batch has the structure of
    one that is not, and only a collated sample has it. Whoever uses the loader takes the row off.

    Attributes:
        drawn: how many rows each rank has in the batches that were drawn and not handed out.
    """

    def __init__(
        self, global_batches: Iterable[Sequence[Any]], turns: Turns, dataset: Any = None
    ) -> None:
        self.drawn: deque[tuple[int, ...]] = deque()
        self._global_batches = global_batches
        self._turns = turns
        self._dataset = dataset
        self._seed = 0
        self._skip_batches = 0

    def begin(self, seed: int, skip_batches: int) -> None:
        """Say how the next iteration is to be drawn, and from which global batch on."""
        self.drawn.clear()
        self._seed = seed
        self._skip_batches = skip_batches

    def __iter__(self) -> Iterator[list[Any]]:
        drawn, skip_batches = self.drawn, self._skip_batches
        for index, batch in enumerate(draw_alike(self._global_batches, self._seed)):
            indices = list(batch)
            if index == 0:
                self._check(indices)
            if index < skip_batches:
                continue
            rows = self._turns.divide(index, len(indices))
            drawn.append(rows)
            yield indices[part_of_rank(rows, self._turns.rank)] or indices[:1]

    def __len__(self) -> int:
        return len(self._global_batches)  # type: ignore[arg-type]

    def _check(self, first: list[Any]) -> None:
        """Raise RankMismatchError if rank 0 begins with another batch."""
        mine = repr(_trace(first, self._dataset))
        of_first_rank = self._turns.compare_first(mine.encode())
        if of_first_rank is not None:
            raise RankMismatchError(
                f"the sampler of rank {self._turns.rank} begins with {_shorten(mine)}, that of "
                f"rank 0 with {_shorten(of_first_rank.decode())}, and all must have one order. "
                "anyrig.distribute seeds PyTorch's, Python's and NumPy's random numbers and a "
                "sampler's attribute `generator`; seed what else this sampler draws from, and give "
                "it the same data: the whole on every rank, and random_split a seeded generator"
            )


def _build_again(
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


def _trace(indices: list[Any], dataset: Any) -> list[Any]:
    """Return the indices in the whole dataset: subsets of two ranks may have different samples."""
    while isinstance(dataset, Subset):
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    return indices


def _shorten(text: str) -> str:
    return text if len(text) < _SHOWN else f"{text[:_SHOWN]} …"
