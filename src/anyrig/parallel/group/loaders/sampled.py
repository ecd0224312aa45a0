"""A loader that draws samples by their index: each rank loads its part of a global batch only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from ....errors import RankMismatchError
from .agreed_order import draw_alike, mix_seed
from .part import without_rows
from .turns import Turns, part_of_rank

_KEPT_OPTIONS = (
    *("num_workers", "worker_init_fn", "multiprocessing_context", "persistent_workers"),
    *("prefetch_factor", "timeout", "collate_fn", "pin_memory", "pin_memory_device"),
)


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
        collates = loader.batch_sampler is not None
        # Batches come in the order in which they were drawn, whatever in_order was: else the parts
        # of one global batch would come at different steps.
        self._loader = DataLoader(
            loader.dataset,
            batch_size=1 if collates else None,  # 1 is what stands for none with a batch sampler
            sampler=None if collates else self._batches,
            batch_sampler=self._batches if collates else None,
            generator=self._generator,
            **{name: getattr(loader, name) for name in _KEPT_OPTIONS},
        )

    def batches(self, epoch: int, skip_batches: int) -> Iterator[Any]:
        """Begin an iteration."""
        given = self._given
        self.turns.begin(epoch, given.sampler, given.batch_sampler, given.dataset)
        self._batches.seed = mix_seed(self._seed, epoch)
        self._batches.skip_batches = skip_batches
        self._batches.drawn.clear()
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


@dataclass(eq=False)
class RankBatches:
    """Draws the global batches of one iteration, and yields this rank's indices of each.

    A rank without rows in a batch is given its first index: an empty batch has the structure of
    one that is not, and only a collated sample has it. Whoever uses the loader takes the row off.

    Attributes:
        drawn: how many rows each rank has in the batches that were drawn and not handed out.
    """

    global_batches: Iterable[Sequence[Any]]
    turns: Turns
    dataset: Any = None
    seed: int = 0
    skip_batches: int = 0
    drawn: deque[tuple[int, ...]] = field(default_factory=deque)

    def __iter__(self) -> Iterator[list[Any]]:
        skip_batches = self.skip_batches
        for index, batch in enumerate(draw_alike(self.global_batches, self.seed)):
            indices = list(batch)
            if index == 0:
                self._check(indices)
            if index >= skip_batches:
                rows = self.turns.divide(index, len(indices))
                self.drawn.append(rows)
                yield indices[part_of_rank(rows, self.turns.rank)] or indices[:1]

    def _check(self, first: list[Any]) -> None:
        """Raise RankMismatchError if rank 0 begins with another batch."""
        dataset = self.dataset
        while isinstance(dataset, Subset):  # those of two ranks may have different samples
            first = [dataset.indices[index] for index in first]
            dataset = dataset.dataset
        mine = repr(first)
        theirs = self.turns.first_of_rank_0(mine.encode()).decode()
        if theirs != mine:
            raise RankMismatchError(
                f"the sampler of rank {self.turns.rank} begins with {_shorten(mine)}, that of rank "
                f"0 with {_shorten(theirs)}, and all must have one order. anyrig.distribute "
                "seeds PyTorch's, Python's and NumPy's random numbers and a sampler's attribute "
                "`generator`; seed what else this sampler draws from, and give it the same data: "
                "the whole on every rank, and random_split a seeded generator"
            )


def _shorten(text: str) -> str:
    return text if len(text) < 80 else f"{text[:80]} …"
