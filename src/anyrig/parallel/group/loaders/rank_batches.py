"""The batch sampler of one rank: its part of every global batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import Sampler, Subset

from ....errors import RankMismatchError
from .agreed_order import draw_alike
from .division import part_of_rank
from .same_order import SameOrder
from .turns import Turns

_SHOWN = 80


class RankBatches(Sampler[list[Any]]):
    """Draws the global batches of a sampler, and yields this rank's indices of each.

    A rank without rows in a batch is given its first index: an empty batch has the structure of
    one that is not, and only a collated sample has it. Whoever uses the loader takes the row off.

    Attributes:
        drawn: how many rows each rank has in the batches that were drawn and not handed out.
    """

    def __init__(
        self,
        global_batches: Iterable[Sequence[Any]],
        rank: int,
        turns: Turns,
        same_order: SameOrder | None = None,
        dataset: Any = None,
    ) -> None:
        self.drawn: deque[tuple[int, ...]] = deque()
        self._global_batches = global_batches
        self._rank = rank
        self._turns = turns
        self._same_order = same_order
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
            if index == 0 and self._same_order is not None:
                self._check(self._same_order, indices)
            if index < skip_batches:
                continue
            rows = self._turns.divide(index, len(indices))
            drawn.append(rows)
            yield indices[part_of_rank(rows, self._rank)] or indices[:1]

    def _check(self, same_order: SameOrder, first: list[Any]) -> None:
        mine = repr(_trace(first, self._dataset))
        of_first_rank = same_order.compare(self._turns.iteration, mine.encode())
        if of_first_rank is not None:
            raise RankMismatchError(
                f"the sampler of rank {self._rank} begins with {_shorten(mine)}, that of rank 0 "
                f"with {_shorten(of_first_rank.decode())}, and all must have one order. "
                "anyrig.distribute seeds PyTorch's, Python's and NumPy's random numbers and a "
                "sampler's attribute `generator`; seed what else this sampler draws from, and give "
                "it the same data: the whole on every rank, and random_split a seeded generator"
            )

    def __len__(self) -> int:
        return len(self._global_batches)  # type: ignore[arg-type]


def _trace(indices: list[Any], dataset: Any) -> list[Any]:
    """Return the indices in the whole dataset: subsets of two ranks may have different samples."""
    while isinstance(dataset, Subset):
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    return indices


def _shorten(text: str) -> str:
    return text if len(text) < _SHOWN else f"{text[:_SHOWN]} …"
