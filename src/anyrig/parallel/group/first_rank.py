"""Work that one rank does while the others wait: a download, a cache, a folder."""

from __future__ import annotations

import functools
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import ParamSpec, TypeVar

from ...errors import OtherRankError
from .board import Board, board_of
from .membership import Context, current_context, join_group

P = ParamSpec("P")
T = TypeVar("T")


def only_first_rank(*, per_node: bool = False, timeout_seconds: float = 1800.0) -> OnlyFirstRank:
    """Return a block in which the first rank works while the others wait for it.

    ::

        with anyrig.only_first_rank() as first:
            if first:
                download(path)
        data = load(path)               # on every rank, after the download

        @anyrig.only_first_rank()
        def download(path): ...         # runs on the first rank; returns None on the others

    The others wait at the end of the block; no rank waits at its beginning. The code within ``if
    first:`` must not wait for other ranks, for example at a barrier. In a process that is the only
    rank, this rank is the first.

    Args:
        per_node: one rank of each node works, for files that nodes do not share.
        timeout_seconds: how long the others wait.

    Raises:
        RankWaitError: at the end of the block, if the first rank did not end its block in time.
        OtherRankError: at the end of the block, if the first rank raised; the message quotes its
            traceback.
    """
    return OnlyFirstRank(per_node, timeout_seconds)


@dataclass(frozen=True)
class _Block:
    """A block that a rank has entered.

    Attributes:
        key: under which the first rank posts its error, or nothing.
        first: the rank that works.
        others: how many ranks wait.
        place: the line of the program.
    """

    context: Context
    board: Board
    key: str
    first: int
    others: int
    place: str

    @property
    def is_first(self) -> bool:
        return self.board.group.rank == self.first


class OnlyFirstRank:
    """What `only_first_rank` returns: a context manager and a decorator."""

    def __init__(self, per_node: bool, timeout_seconds: float) -> None:
        self._per_node = per_node
        self._timeout_seconds = timeout_seconds
        self._entered: list[_Block | None] = []

    def __enter__(self) -> bool:
        """Return whether this is the first rank."""
        block = self._begin()
        self._entered.append(block)
        return block is None or block.is_first

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Post how the block ended on the first rank, or wait for that."""
        block = self._entered.pop()
        if block is None:
            return
        block.context.first_blocks.pop()
        if not block.others:
            return
        if block.is_first:
            report = "" if error is None else "".join(traceback.format_exception(error))
            block.board.post(block.key, report.encode())
        elif error is None:
            self._wait(block)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Return a function that calls `function` on the first rank only."""

        @functools.wraps(function)
        def call_on_first_rank(*args: P.args, **kwargs: P.kwargs) -> T | None:
            with OnlyFirstRank(self._per_node, self._timeout_seconds) as first:
                return function(*args, **kwargs) if first else None

        return call_on_first_rank

    def _begin(self) -> _Block | None:
        group = join_group()
        if group is None:
            return None
        context, board = current_context(), board_of(group)
        place = board.come_to("only_first_rank()")
        ranks = _ranks_of_node(board) if self._per_node else range(group.world_size)
        # A block within a block is counted within it: only the first rank may enter the inner one,
        # and the ranks' counts of the outer blocks must stay equal.
        outer = context.first_blocks[-1] if context.first_blocks else "first"
        kind = f"{outer}.node{ranks[0]}." if self._per_node else f"{outer}."
        key = f"{kind}{board.number(kind)}"
        context.first_blocks.append(key)
        return _Block(context, board, key, ranks[0], len(ranks) - 1, place)

    def _wait(self, block: _Block) -> None:
        what = "the end of only_first_rank()"
        report = block.board.collect(
            block.key, block.others, self._timeout_seconds, what, block.first, block.place
        ).decode()
        if report:
            # Quoted, so that nobody mistakes it for this rank's own traceback.
            quoted = textwrap.indent(report.rstrip(), "  | ")
            raise OtherRankError(
                f"{block.board.name_of(block.first)} failed in only_first_rank() ({block.place}), "
                f"and rank {block.board.group.rank} waited for it:\n{quoted}"
            )


def _ranks_of_node(board: Board) -> range | list[int]:
    """Return the ranks of this node in order."""
    here = board.ranks_here()
    if here is not None:
        return here
    hosts = board.exchange("hosts", board.host.encode(), 600.0, "only_first_rank(per_node=True)")
    return [other for other, host in enumerate(hosts) if host.decode() == board.host]
