"""A loader without indices: each rank takes its samples of every batch, or has its own batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from ....errors import BatchError, MoveError, RankMismatchError
from .batch_bytes import decode_empty, encode_empty, fingerprint
from .part import GIVE_EMPTY, count_samples, part_of
from .turns import Turns, part_of_rank

_REMEDY = (
    "If each rank's loader yields samples of its own, as an IterableDataset that divides itself "
    "among the ranks does, pass distribute(…, divided=True); else let it yield the same batches on "
    "every rank, with one seed"
)


class StreamedDivision:
    """Iterates over a loader of global batches, or of this rank's own batches if ``turns.divided``.

    `compares` lets the ranks compare the first batch of each iteration.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        turns: Turns,
        empty: Callable[[], Any] | None,
        compares: bool,
        seed: int = 0,
    ) -> None:
        self.turns = turns
        self.seed = seed  # not used: the loader has an order of its own
        self._given = loader
        self._compares = compares
        self._empty = empty
        self._knows_empty = empty is not None

    def batches(self, epoch: int, skip_batches: int) -> Iterator[Any]:
        """Begin an iteration."""
        given = self._given
        sampler, dataset = getattr(given, "sampler", None), getattr(given, "dataset", None)
        self.turns.begin(epoch, given, sampler, dataset)
        return self._yield_batches(islice(given, skip_batches, None), skip_batches)

    def _yield_batches(self, batches: Iterator[Any], start: int) -> Iterator[Any]:
        turns, index = self.turns, start
        if self._compares:
            batches = self._check_first(batches)
        for batch in batches:
            if turns.divided:
                self._learn_empty(batch)
            turns.note(drawn=1)  # first of all, because ranks without a batch wait for this
            if turns.divided:
                yield batch
            else:
                count = count_samples(batch)
                counts = turns.divide(index, count)
                turns.use(counts)
                yield part_of(batch, part_of_rank(counts, turns.part), count)
            index += 1
        turns.note(ended=True)
        while turns.other_rank_has(index - start):
            if not turns.divided:
                raise RankMismatchError(
                    f"the loader of rank {turns.rank} ended after {index} global batches, and "
                    f"another rank's goes on. {_REMEDY}"
                )
            yield self._make_empty()
            index += 1

    def _check_first(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return `batches` after comparing the first batch with rank 0's on every rank."""
        first = list(islice(batches, 1))
        own = fingerprint(first[0]) if first else b"no batch"
        if self.turns.first_of_rank_0(own) != own:
            raise RankMismatchError(
                f"the loader of rank {self.turns.rank} begins with another batch than rank 0's, so "
                f"its samples are not parts of the same global batches. {_REMEDY}. Where the "
                "samples are the same and only their values differ, as by random augmentation, "
                "pass divided=False"
            )
        return chain(first, batches)

    def _learn_empty(self, batch: Any) -> None:
        """Keep a batch without samples, and post it for ranks that never have a batch."""
        board = self.turns.board
        if board is None or self._knows_empty:
            return
        self._knows_empty = True
        try:
            empty = part_of(batch, slice(0, 0), count_samples(batch))
        except (BatchError, MoveError):
            return
        self._empty = lambda: empty
        data = encode_empty(empty)
        if data is not None:
            board.post(f"{self.turns.name}/empty", data)

    def _make_empty(self) -> Any:
        if not self._knows_empty and self.turns.board is not None:
            (data,) = self.turns.board.look([f"{self.turns.name}/empty"])
            if data is not None:
                return decode_empty(data)
        if self._empty is not None:
            return self._empty()
        raise BatchError(
            f"rank {self.turns.rank} has no batch left, while others have, and this loader's "
            f"batches do not show what a batch without samples is. {GIVE_EMPTY}"
        )
