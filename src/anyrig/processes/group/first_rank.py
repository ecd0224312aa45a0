"""`only_first_rank`, for work that one rank does while the others wait, such as a download."""

from __future__ import annotations

import functools
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar

from ...errors import OtherRankError
from .board import Board, board_of
from .membership import current_context, join_group

P = ParamSpec("P")
T = TypeVar("T")


def only_first_rank(*, per_node: bool = False, timeout_seconds: float = 1800.0) -> OnlyFirstRank:
    """Run a block of code on the first rank while the other ranks wait for it.

    ::

        with anyrig.only_first_rank() as first:
            if first:
                download(path)
        data = load(path)               # on every rank, after the download

        @anyrig.only_first_rank()
        def download(path): ...         # runs on the first rank; returns None on the others

    The other ranks wait at the end of the block; no rank waits at its beginning. The code within
    ``if first:`` must not wait for other ranks, for example at a barrier. In a process that is the
    only rank, this rank is the first.

    Args:
        per_node: whether the first rank of each node runs the block, for files that nodes do not
            share.
        timeout_seconds: how long the other ranks wait.

    Returns:
        a context manager whose value is whether this rank is the first. It is also a decorator.

    Raises:
        RankWaitError: at the end of the block, if the first rank did not end its block in time.
        OtherRankError: at the end of the block, if the first rank raised; the message quotes its
            traceback.
    """
    return OnlyFirstRank(per_node, timeout_seconds)


class OnlyFirstRank:
    """The context manager and decorator that `only_first_rank` returns."""

    def __init__(self, per_node: bool, timeout_seconds: float) -> None:
        self._per_node = per_node
        self._timeout_seconds = timeout_seconds
        self._entered: list[AbstractContextManager[bool]] = []

    def __enter__(self) -> bool:
        """Return whether this is the first rank."""
        block = self._block()
        is_first = block.__enter__()
        self._entered.append(block)
        return is_first

    def __exit__(self, *error: Any) -> None:
        """On the first rank, post how the block ended; on other ranks, wait for this report."""
        self._entered.pop().__exit__(*error)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Return a function that calls `function` on the first rank only."""

        @functools.wraps(function)
        def call_on_first_rank(*args: P.args, **kwargs: P.kwargs) -> T | None:
            with OnlyFirstRank(self._per_node, self._timeout_seconds) as first:
                return function(*args, **kwargs) if first else None

        return call_on_first_rank

    @contextmanager
    def _block(self) -> Iterator[bool]:
        group = join_group()
        if group is None:
            yield True
            return
        outer, board = current_context().first_blocks, board_of(group)
        place = board.reach("only_first_rank()")
        ranks = _ranks_of_node(board) if self._per_node else range(group.world_size)
        # An inner block has a counter of its own for each outer block: if only the first rank
        # enters it, the counts of the outer blocks still stay equal on all ranks.
        kind = f"{outer[-1] if outer else 'first'}."
        if self._per_node:
            kind += f"node{ranks[0]}."
        key = f"{kind}{board.number(kind)}"
        is_first, others = group.rank == ranks[0], len(ranks) - 1
        outer.append(key)
        report = ""
        try:
            yield is_first
        except BaseException as error:
            trace = error.__traceback__ and error.__traceback__.tb_next  # without this frame
            report = "".join(traceback.format_exception(type(error), error, trace))
            raise
        finally:
            outer.pop()
            if is_first and others:
                board.post(key, report.encode())
        if is_first:
            return
        what = "the end of only_first_rank()"
        report = board.collect(key, others, self._timeout_seconds, what, ranks[0], place).decode()
        if report:
            # Quoted, to distinguish it from this rank's own traceback.
            quoted = textwrap.indent(report.rstrip(), "  | ")
            raise OtherRankError(
                f"{board.name_of(ranks[0])} failed in only_first_rank() ({place}), and rank "
                f"{group.rank} waited for it:\n{quoted}"
            )


def _ranks_of_node(board: Board) -> range | list[int]:
    """Return the ranks of this node in ascending order."""
    here = board.ranks_here()
    if here is not None:
        return here
    hosts = board.exchange("hosts", board.host.encode(), 600.0, "only_first_rank(per_node=True)")
    return [other for other, host in enumerate(hosts) if host.decode() == board.host]
