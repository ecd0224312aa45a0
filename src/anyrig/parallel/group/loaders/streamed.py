"""A loader without indices: each rank takes its rows of every batch, or all if it came divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from ....errors import BatchError, MoveError, RankMismatchError
from ...shares.shares import Shares
from ..board import Board
from .division import part_of_rank
from .fingerprint import fingerprint
from .outline import read_outline, write_outline
from .part import part_of, rows_of
from .running_out import RunningOut
from .same_order import SameOrder
from .turns import Turns


class StreamedDivision:
    """Iterates over a loader as it is.

    Args:
        loader: yields the global batches on every rank, or, if `divided`, each rank's own.
        turns: counts the iterations.
        divided: see above.
        empty: see `anyrig.distribute`.
        board: of the ranks; None where there is one.
        timeout_seconds: how long to wait for other ranks.
        same_order: checks that all ranks begin with the same global batch; None to trust in it.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        turns: Turns,
        divided: bool,
        empty: Callable[[], Any] | None,
        board: Board | None,
        timeout_seconds: float,
        same_order: SameOrder | None = None,
    ) -> None:
        self._given = loader
        self._turns = turns
        self._divided = divided
        self._make_empty = empty
        self._board = board
        self._same_order = same_order
        self._rank = 0 if board is None else board.group.rank
        self._running_out = (
            None if board is None else RunningOut(board, f"{turns.name}/progress", timeout_seconds)
        )
        self._rows: list[tuple[int, ...]] = []
        self._empty: Any = None
        self._knows_empty = False

    @property
    def shares(self) -> Shares | None:
        """Those agreed on last."""
        return None if self._divided else self._turns.shares

    @property
    def rows_of_batches(self) -> list[tuple[int, ...]] | None:
        """See `DistributedLoader`."""
        return None if self._divided else self._rows

    def batches(self, epoch: int, skip_batches: int) -> Iterator[Any]:
        """Begin an iteration."""
        self._turns.begin()
        given = self._given
        for part in (given, getattr(given, "sampler", None), getattr(given, "dataset", None)):
            tell = getattr(part, "set_epoch", None)
            if callable(tell):
                tell(epoch)
        self._rows = []
        if self._running_out is not None:
            self._running_out.begin(self._turns.iteration)
        return self._hand_out(islice(given, skip_batches, None), skip_batches, self._rows)

    def _hand_out(
        self, batches: Iterator[Any], start: int, rows: list[tuple[int, ...]]
    ) -> Iterator[Any]:
        running_out, index = self._running_out, start
        if self._same_order is not None:
            batches = self._check_first(self._same_order, batches)
        for batch in batches:
            # First of all: ranks without a batch wait to hear it.
            if running_out is not None:
                self._learn_empty(batch)
                running_out.drew()
            yield batch if self._divided else self._part_of(batch, index, rows)
            index += 1
        if running_out is None:
            return
        running_out.ended()
        while running_out.somebody_has(index - start):
            if not self._divided:
                raise RankMismatchError(
                    f"the loader of rank {self._rank} ended after {index} global batches, and "
                    f"another rank's goes on. {_REMEDY}"
                )
            self._turns.use()
            yield self._empty_batch()
            index += 1

    def _check_first(self, same_order: SameOrder, batches: Iterator[Any]) -> Iterator[Any]:
        """Return `batches` after comparing the first with rank 0's; every rank does so."""
        first = list(islice(batches, 1))
        of_first_rank = same_order.compare(
            self._turns.iteration, fingerprint(first[0]) if first else b"no batch"
        )
        if of_first_rank is not None:
            raise RankMismatchError(
                f"the loader of rank {self._rank} begins with another batch than rank 0's, so its "
                f"rows are not parts of the same global batches. {_REMEDY}. Where the samples are "
                "the same and only their values differ, as by random augmentation, pass "
                "divided=False"
            )
        return chain(first, batches)

    def _part_of(self, batch: Any, index: int, rows: list[tuple[int, ...]]) -> Any:
        of_batch = rows_of(batch)
        rows.append(self._turns.divide(index, of_batch))
        self._turns.use()
        return part_of(batch, part_of_rank(rows[-1], self._rank), of_batch)

    def _learn_empty(self, batch: Any) -> None:
        """Keep a batch without rows, and leave it for ranks that never have one with."""
        if not self._divided or self._knows_empty or self._make_empty or self._board is None:
            return
        self._knows_empty = True
        try:
            self._empty = part_of(batch, slice(0, 0), rows_of(batch))
        except (BatchError, MoveError):
            self._empty = _END
        outline = write_outline(self._empty)
        if outline is not None:
            self._board.post(f"{self._turns.name}/empty", outline)

    def _empty_batch(self) -> Any:
        if self._make_empty is not None:
            return self._make_empty()
        if not self._knows_empty and self._board is not None:
            (there,) = self._board.look([f"{self._turns.name}/empty"])
            self._empty = _END if there is None else read_outline(there)
            self._knows_empty = True
        if self._empty is _END:
            raise BatchError(
                f"rank {self._rank} has no batch left, while others have, and it cannot be told "
                "from this loader's batches what one without rows is. Give "
                "distribute(…, empty=function), which returns what the loader's collate_fn would "
                "return of no samples, such as empty=lambda: ([], [])"
            )
        return self._empty


_END = object()
_REMEDY = (
    "If each rank's loader yields samples of its own, as an IterableDataset that divides itself "
    "among the ranks does, pass distribute(…, divided=True); else let it yield the same batches on "
    "every rank, with one seed"
)
