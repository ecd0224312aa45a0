"""Communication of ranks through the store of their process group.

The store needs no device and no collective, so it works while a device is busy. Each rank writes
the calls that it reaches, so an error can name a missing rank's host and its last call.

::

    exchange 7 of "barrier"     rank 0                 rank 1                 keys afterwards
                                set 7/0, arrived 1     .                      6/0 6/1  7/0
                                wait for 7/all         set 7/1, arrived 2
                                                       set 7/all              7/0 7/1  7/all
                                delete 6/0, 6/all      delete 6/1

A rank that has left exchange 7 knows that all ranks have left exchange 6. Therefore the store holds
the keys of at most two exchanges of each kind.
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from ...devices.rank import LocalRank
from ...errors import RankMismatchError, RankWaitError
from ..time_limit import time_limit_seconds
from ..waits import waits_for_ranks
from .caller_place import blocks_main_thread, place_of_caller
from .membership import Group, current_context

# The pause between two reads of the store grows from the shortest to the longest.
_SHORTEST_PAUSE_SECONDS = 0.0002
_LONGEST_PAUSE_SECONDS = 0.02
# The most reads of all ranks together. In large groups, this limit lengthens the longest pause.
_READS_PER_SECOND = 5000

# At this interval, a rank that waits writes where it waits, and reads where the other ranks wait.
_LOOK_SECONDS = 1.0

# An error names at most this many missing ranks.
_MOST_NAMED = 15

# The kind of exchange that uses a collective between the hosts instead of the store.
MEETING = "meeting"

# The usual reason why ranks reach different calls of a model.
UNEVEN_BATCHES = (
    "If ranks have different numbers of batches, use anyrig.distribute(loader), or put the loop in "
    "model.join()"
)
_MORE_TIME = (
    f"{UNEVEN_BATCHES}. If the work of that rank takes that long, allow more time with the "
    "launcher's --timeout"
)


class Waiting(NamedTuple):
    """The `number`-th exchange of its kind, for which a rank waits. Every rank must reach it."""

    kind: str
    number: int


class Passing(NamedTuple):
    """The call that a rank last reached."""

    host: str  # the name of its node
    what: str | None = None  # the call, such as "a barrier"; None before the first call
    place: str | None = None  # the line of Python, as "train.py:31 in step"
    time_seconds: float | None = None  # since 1970, by the node's clock
    waiting: Waiting | None = None  # set if the main thread has waited for `_LOOK_SECONDS`


class Board:
    """One rank's view of the `store` of its process group. `name` is the prefix of all keys."""

    def __init__(self, group: Group, store: Any, name: str, counts: Counter[str]) -> None:
        self.group = group
        self.host = socket.gethostname()
        # A clone has its own connection, so waits do not block other threads that use the store.
        self._store: Any = dist.PrefixStore(name, store.clone())  # type: ignore[attr-defined]
        self._counts = counts
        self._passing = Passing(self.host)
        self._longest_pause_seconds = max(
            _LONGEST_PAUSE_SECONDS, group.world_size / _READS_PER_SECOND
        )
        self._note(self._passing)

    def number(self, kind: str) -> int:
        """Count a call with `kind`, and return the count, which is the same on every rank."""
        self._counts[kind] += 1
        return self._counts[kind]

    def advance(self, kind: str, number: int) -> None:
        """Raise the count of `kind` to at least `number`: other ranks have made more calls."""
        self._counts[kind] = max(self._counts[kind], number)

    def reach(self, what: str) -> str:
        """Write that this rank has reached the call `what`; return the line of the program."""
        place = place_of_caller()
        self._note(Passing(self.host, what, place, time.time()))
        return place

    def give(self, kind: str, value: bytes, what: str) -> int:
        """Give this rank's value to the next exchange of a kind without waiting for other values.

        Return the number of the exchange.
        """
        number = self.number(kind)
        key = f"{kind}/{number}"
        with self._connected(what):
            self._store.set(f"{key}/{self.group.rank}", value)
            if self._store.add(f"{key}/arrived", 1) == self.group.world_size:
                self._store.set(f"{key}/all", b"")
        return number

    def exchange(
        self, kind: str, value: bytes, timeout_seconds: float, what: str | None = None
    ) -> list[bytes]:
        """Return the values of all ranks, in order of ranks, once every rank has made this call.

        Args:
            kind: the kind of exchange. Exchanges of different kinds are independent.
            value: this rank's value.
            timeout_seconds: how long to wait for the other ranks.
            what: the name of the exchange in error messages; by default `kind`.

        Raises:
            RankWaitError: a rank did not arrive in time; the message names the rank.
        """
        what = what or kind
        place = self.reach(what)
        number = self.give(kind, value, what)
        key, before = f"{kind}/{number}", f"{kind}/{number - 1}"
        rank, ranks = self.group.rank, range(self.group.world_size)

        def missing() -> list[int]:
            return [other for other in ranks if not self._store.check([f"{key}/{other}"])]

        self.wait_until(
            lambda: self._store.check([f"{key}/all"]),
            missing,
            timeout_seconds,
            what,
            place,
            Waiting(kind, number),
        )
        with self._connected(what):
            values: list[bytes] = self._store.multi_get([f"{key}/{other}" for other in ranks])
            if number > 1:
                self._store.delete_key(f"{before}/{rank}")
            if number > 1 and rank == 0:
                self._store.delete_key(f"{before}/arrived")
                self._store.delete_key(f"{before}/all")
        return values

    def post(self, key: str, value: bytes) -> None:
        """Write `value` for `collect` or `look` on other ranks."""
        with self._connected(key):
            self._store.set(key, value)

    def collect(
        self, key: str, readers: int, timeout_seconds: float, what: str, poster: int, place: str
    ) -> bytes:
        """Return the value that rank `poster` posts; the last of `readers` ranks deletes it.

        Raises:
            RankWaitError: `poster` did not post in time.
        """
        self.wait_until(
            lambda: self._store.check([key]), lambda: [poster], timeout_seconds, what, place
        )
        with self._connected(what):
            value: bytes = self._store.get(key)
            if self._store.add(f"{key}/read", 1) == readers:
                self._store.delete_key(key)
                self._store.delete_key(f"{key}/read")
        return value

    def look(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the current value of each key; None for a key that is not set."""
        with self._connected("a read of the other ranks' progress"):
            return [self._store.get(key) if self._store.check([key]) else None for key in keys]

    @waits_for_ranks
    def wait_until(
        self,
        is_done: Callable[[], bool],
        missing: Callable[[], Sequence[int]],
        timeout_seconds: float,
        what: str,
        place: str,
        waiting: Waiting | None = None,
    ) -> None:
        """Wait until ``is_done()``.

        Args:
            is_done: returns whether the wait is over.
            missing: returns the ranks that have not arrived.
            timeout_seconds: how long to wait.
            what: the call that waits, for error messages.
            place: the line of the program that waits.
            waiting: the exchange, if every rank must reach it; otherwise None.

        Raises:
            RankWaitError: the ``missing()`` ranks did not arrive in time.
            RankMismatchError: see `check_others`.
        """
        # The store's own wait cannot be interrupted, and prints a warning when it times out.
        started = looked = time.monotonic()
        pause_seconds = _SHORTEST_PAUSE_SECONDS
        while True:
            with self._connected(what):
                if is_done():
                    break
            now = time.monotonic()
            if now - started > timeout_seconds:
                late = list(missing())
                if late:
                    raise self.late(late, timeout_seconds, what, place)
                break  # the ranks have just arrived
            if waiting is not None and now - looked > _LOOK_SECONDS:
                looked = now
                self.check_others(waiting)
            time.sleep(pause_seconds)
            pause_seconds = min(1.5 * pause_seconds, self._longest_pause_seconds)
        self.stop_waiting()

    def check_others(self, waiting: Waiting) -> None:
        """Write that this rank waits at `waiting`, and check that no rank waits elsewhere.

        Raises:
            RankMismatchError: another rank waits for this rank in another exchange. This rank's
                entry stays, so that the other rank raises, too.
        """
        if not blocks_main_thread():
            return  # the main thread may still reach the exchange of the other ranks
        if self._passing.waiting != waiting:
            self._note(self._passing._replace(waiting=waiting))
        for rank in range(self.group.world_size):
            other = self._passing_of(rank)
            theirs = None if other is None else other.waiting
            if theirs is None or theirs == waiting or self._counts[theirs.kind] >= theirs.number:
                continue
            in_model = MEETING in (waiting.kind, theirs.kind)
            raise RankMismatchError(
                f"rank {self.group.rank} waits at {self._passing.what} ({self._passing.place}), "
                f"while {self._describe(rank)}, and waits there for rank {self.group.rank}: "
                "neither can continue. Let all ranks make the same calls in the same order"
                + (f". {UNEVEN_BATCHES}" if in_model else "")
            )

    def stop_waiting(self) -> None:
        """Remove the entry that `check_others` wrote."""
        if self._passing.waiting is not None:
            self._note(self._passing._replace(waiting=None))

    def ranks_elsewhere(self, waiting: Waiting) -> list[int]:
        """Return the other ranks that are not known to wait at `waiting`."""
        others = [rank for rank in range(self.group.world_size) if rank != self.group.rank]
        passings = {rank: self._passing_of(rank) for rank in others}
        return [rank for rank, it in passings.items() if it is None or it.waiting != waiting]

    def late(
        self,
        ranks: Sequence[int],
        timeout_seconds: float,
        what: str,
        place: str,
        remedy: str | None = None,
    ) -> RankWaitError:
        """Return an error that names the missing ranks and a remedy."""
        if remedy is None:
            from_launcher = timeout_seconds == time_limit_seconds()
            option = "the launcher's --timeout" if from_launcher else "timeout_seconds"
            remedy = f"Check what these ranks do, or allow more time with {option}"
        *first, last = map(str, ranks)
        named = f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"
        described = [self._describe(rank) for rank in ranks[:_MOST_NAMED]]
        if len(ranks) > _MOST_NAMED:
            described.append(f"and {len(ranks) - _MOST_NAMED} more")
        return RankWaitError(
            f"rank {self.group.rank} waited at {what} ({place}), and {named} did not take part "
            f"within {timeout_seconds:g} s: {'; '.join(described)}. {remedy}",
            ranks,
        )

    def ranks_here(self) -> range | None:
        """Return the ranks of this node; None if the launcher has not set LOCAL_RANK."""
        local = LocalRank.read()
        if local is None:
            return None
        first = self.group.rank - local.rank  # launchers number a node's ranks consecutively
        return range(first, first + local.world_size)

    def name_of(self, rank: int) -> str:
        """Return "rank 3", with its host if there may be several nodes."""
        local = LocalRank.read()
        if local is not None and local.world_size == self.group.world_size:
            return f"rank {rank}"
        passing = self._passing_of(rank)
        if passing is not None:
            return f"rank {rank} on {passing.host}"
        here = rank in (self.ranks_here() or ())
        return f"rank {rank} on {self.host if here else 'an unknown host'}"

    def _describe(self, rank: int) -> str:
        named = self.name_of(rank)
        passing = self._passing_of(rank)
        if passing is None or passing.what is None or passing.time_seconds is None:
            return f"{named} has not yet reached any point where ranks wait for each other"
        ago = max(0.0, time.time() - passing.time_seconds)
        return f"{named} last reached {passing.what} at {passing.place}, {ago:.0f} s ago"

    def _note(self, passing: Passing) -> None:
        self._passing = passing
        with self._connected("a report to the other ranks"):
            self._store.set(f"rank/{self.group.rank}", json.dumps(passing))

    def _passing_of(self, rank: int) -> Passing | None:
        (text,) = self.look([f"rank/{rank}"])
        if text is None:
            return None
        passing = Passing(*json.loads(text))
        return passing._replace(waiting=passing.waiting and Waiting(*passing.waiting))

    @contextmanager
    def _connected(self, what: str) -> Iterator[None]:
        try:
            yield
        except dist.DistNetworkError as error:
            raise RankWaitError(
                f"rank {self.group.rank} lost the connection to the group's store at {what}: the "
                f"process that hosts the store, the launcher or rank 0, has ended ({error})"
            ) from error


def board_of(group: Group) -> Board:
    """Return the board of the current process group."""
    context = current_context()
    if context.board is None:
        world: Any = dist.group.WORLD
        name = f"anyrig/{context.number}"
        context.board = Board(group, world.get_group_store(), name, context.counts)
    board: Board = context.board
    return board


@waits_for_ranks
def wait_for_hosts(work: Any, call: object, number: int) -> None:
    """Wait for `work`, the `number`-th collective between the hosts on every rank.

    ``str(call)`` names the call that waits.

    A collective that times out does not report which rank is missing, but the store shows it.

    Raises:
        RankWaitError: a rank did not arrive within the group's timeout; the message names the rank.
        RankMismatchError: this rank and another rank wait for each other in different exchanges.
    """
    started = time.monotonic()
    if _is_done_soon(work):
        return
    board = board_of(current_context().group)
    what = str(call)
    waiting, place = Waiting(MEETING, number), board.reach(what)
    try:
        while not _is_done_soon(work):
            board.check_others(waiting)
    except RuntimeError as error:
        if "timed out" not in str(error).lower():
            raise
        seconds = round(time.monotonic() - started)
        late = board.ranks_elsewhere(waiting)
        raise board.late(late, seconds, what, place, _MORE_TIME) from error
    board.stop_waiting()


def _is_done_soon(work: Any) -> bool:
    try:
        work.wait(timedelta(seconds=_LOOK_SECONDS))
    except RuntimeError:
        # If the collective has not failed, only this wait has timed out.
        if work.is_completed():
            raise
        return False
    return True
