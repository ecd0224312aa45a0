"""A loader without indices: each rank takes its rows of every batch, or all if it came divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from ....errors import BatchError, MoveError, RankMismatchError
from .batch_text import fingerprint, read_outline, write_outline
from .part import GIVE_EMPTY, part_of, rows_of
from .turns import Turns, part_of_rank

_REMEDY = (
    "If each rank's loader yields samples of its own, as an IterableDataset that divides itself "
    "among the ranks does, pass distribute(…, divided=True); else let it yield the same batches on "
    "every rank, with one seed"
)


class StreamedDivision:
    """Iterates over a loader as it is; `compares` has ranks begin with the same global batch."""

    def __init__(
        self, loader: Iterable[Any], turns: Turns, empty: Callable[[], Any] | None, compares: bool
    ) -> None:
        self.turns = turns
        self._given = loader
        self._compares = compares
        self._empty = empty

    def batches(self, epoch: int, skip_batches: int) -> Iterator[Any]:
        """Begin an iteration."""
        given = self._given
        sampler, dataset = getattr(given, "sampler", None), getattr(given, "dataset", None)
        self.turns.begin(epoch, given, sampler, dataset)
        batches = islice(given, skip_batches, None)
        return self._hand_out(batches, skip_batches, self.turns.rows_of_batches)

    def _hand_out(
        self, batches: Iterator[Any], start: int, rows: list[tuple[int, ...]]
    ) -> Iterator[Any]:
        turns, index = self.turns, start
        if self._compares:
            batches = self._check_first(batches)
        for batch in batches:
            # First of all: ranks without a batch wait to hear it.
            if turns.divided:
                self._learn_empty(batch)
            turns.drew()
            if turns.divided:
                yield batch
            else:
                of_batch = rows_of(batch)
                rows.append(turns.divide(index, of_batch))
                turns.use()
                yield part_of(batch, part_of_rank(rows[-1], turns.rank), of_batch)
            index += 1
        turns.ended()
        while turns.somebody_has(index - start):
            if not turns.divided:
                raise RankMismatchError(
                    f"the loader of rank {turns.rank} ended after {index} global batches, and "
                    f"another rank's goes on. {_REMEDY}"
                )
            yield self._empty_batch()
            index += 1

    def _check_first(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return `batches` after comparing the first with rank 0's; every rank does so."""
        first = list(islice(batches, 1))
        mine = fingerprint(first[0]) if first else b"no batch"
        if self.turns.first_of_rank_0(mine) != mine:
            raise RankMismatchError(
                f"the loader of rank {self.turns.rank} begins with another batch than rank 0's, so "
                f"its rows are not parts of the same global batches. {_REMEDY}. Where the samples "
                "are the same and only their values differ, as by random augmentation, pass "
                "divided=False"
            )
        return chain(first, batches)

    def _learn_empty(self, batch: Any) -> None:
        """Keep a batch without rows, and leave it for ranks that never have one with."""
        board = self.turns.board
        if board is None or self._empty is not None:
            return
        try:
            empty = part_of(batch, slice(0, 0), rows_of(batch))
        except (BatchError, MoveError):
            self._empty = partial(_refuse, self.turns.rank)
            return
        self._empty = lambda: empty
        outline = write_outline(empty)
        if outline is not None:
            board.post(f"{self.turns.name}/empty", outline)

    def _empty_batch(self) -> Any:
        if self._empty is None and self.turns.board is not None:
            (outline,) = self.turns.board.look([f"{self.turns.name}/empty"])
            if outline is not None:
                self._empty = partial(read_outline, outline)
        return _refuse(self.turns.rank) if self._empty is None else self._empty()


def _refuse(rank: int) -> Any:
    raise BatchError(
        f"rank {rank} has no batch left, while others have, and it cannot be told from this "
        f"loader's batches what one without rows is. {GIVE_EMPTY}"
    )
