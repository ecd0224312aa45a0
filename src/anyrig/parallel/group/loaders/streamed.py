"""A loader without indices: each rank takes its rows of every batch, or all if it came divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from ....errors import RankMismatchError
from .empty_batch import EmptyBatch
from .fingerprint import fingerprint
from .part import part_of, rows_of
from .running_out import RunningOut
from .turns import Turns, part_of_rank

_REMEDY = (
    "If each rank's loader yields samples of its own, as an IterableDataset that divides itself "
    "among the ranks does, pass distribute(…, divided=True); else let it yield the same batches on "
    "every rank, with one seed"
)


class StreamedDivision:
    """Iterates over a loader as it is.

    Args:
        loader: yields the global batches on every rank, or, if it came divided, each rank's own.
        turns: of the loader.
        empty: see `anyrig.distribute`.
        compares: whether to check that all ranks begin with the same global batch.

    Attributes:
        turns: of the loader.
        rows_of_batches: see `DistributedLoader`.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        turns: Turns,
        empty: Callable[[], Any] | None,
        compares: bool,
    ) -> None:
        self.turns = turns
        self.rows_of_batches: list[tuple[int, ...]] | None = None if turns.divided else []
        self._given = loader
        self._compares = compares
        self._running_out = RunningOut(turns)
        self._empty = EmptyBatch(empty, turns)

    def batches(self, epoch: int, skip_batches: int) -> Iterator[Any]:
        """Begin an iteration."""
        given = self._given
        sampler, dataset = getattr(given, "sampler", None), getattr(given, "dataset", None)
        self.turns.begin(epoch, given, sampler, dataset)
        self._running_out.begin()
        self.rows_of_batches = rows = None if self.turns.divided else []
        return self._hand_out(islice(given, skip_batches, None), skip_batches, rows)

    def _hand_out(
        self, batches: Iterator[Any], start: int, rows: list[tuple[int, ...]] | None
    ) -> Iterator[Any]:
        index = start
        if self._compares:
            batches = self._check_first(batches)
        for batch in batches:
            # First of all: ranks without a batch wait to hear it.
            if rows is None:
                self._empty.learn(batch)
            self._running_out.drew()
            yield batch if rows is None else self._part_of(batch, index, rows)
            index += 1
        self._running_out.ended()
        while self._running_out.somebody_has(index - start):
            if rows is not None:
                raise RankMismatchError(
                    f"the loader of rank {self.turns.rank} ended after {index} global batches, and "
                    f"another rank's goes on. {_REMEDY}"
                )
            yield self._empty.get()
            index += 1

    def _check_first(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return `batches` after comparing the first with rank 0's; every rank does so."""
        first = list(islice(batches, 1))
        if self.turns.compare_first(fingerprint(first[0]) if first else b"no batch") is not None:
            raise RankMismatchError(
                f"the loader of rank {self.turns.rank} begins with another batch than rank 0's, so "
                f"its rows are not parts of the same global batches. {_REMEDY}. Where the samples "
                "are the same and only their values differ, as by random augmentation, pass "
                "divided=False"
            )
        return chain(first, batches)

    def _part_of(self, batch: Any, index: int, rows: list[tuple[int, ...]]) -> Any:
        of_batch = rows_of(batch)
        rows.append(self.turns.divide(index, of_batch))
        self.turns.use()
        return part_of(batch, part_of_rank(rows[-1], self.turns.rank), of_batch)
