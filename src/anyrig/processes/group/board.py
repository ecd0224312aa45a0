"""What ranks tell each other through the store of their process group.

The store needs no device and no collective, so it works while a device is busy. Each rank writes
where it is, so an error can say where a missing rank runs and what it last reached.

::

    exchange 7 of "barrier"     rank 0                 rank 1                 keys afterwards
                                set 7/0, arrived 1     .                      6/0 6/1  7/0
                                wait for 7/all         set 7/1, arrived 2
                                                       set 7/all              7/0 7/1  7/all
                                delete 6/0, 6/all      delete 6/1

A rank that has left exchange 7 knows that all ranks have left exchange 6. So the store holds the
keys of at most two exchanges of each kind.
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

# Pauses between two reads of the store. All ranks together read at most so often in a second.
_SHORTEST_PAUSE_SECONDS = 0.0002
_LONGEST_PAUSE_SECONDS = 0.02
_READS_PER_SECOND = 5000

# A rank that has waited this long writes where, and reads as often where the others wait.
_LOOK_SECONDS = 1.0

# An error names this many missing ranks at most.
_MOST_NAMED = 15

# The kind of the exchanges that the hosts make by a collective, not through the store.
MEETING = "meeting"

# The usual reason why ranks reach different calls of a model.
UNEVEN_BATCHES = (
    "Where ranks have different numbers of batches, take anyrig.distribute(loader), or put the "
    "loop in model.join()"
)
_MORE_TIME = (
    f"{UNEVEN_BATCHES}. If the work there takes so long, allow more time with the launcher's "
    "--timeout"
)


class Waiting(NamedTuple):
    """The exchange `number` of its kind, which every rank must reach."""

    kind: str
    number: int


class Passing(NamedTuple):
    """Where a rank last was."""

    host: str  # the name of its node
    what: str | None = None  # the call that it reached, such as "a barrier"; None before the first
    place: str | None = None  # the line of Python, as "train.py:31 in step"
    time_seconds: float | None = None  # by the node's clock, since 1970
    waiting: Waiting | None = None  # in the main thread, for `_LOOK_SECONDS` or longer


class Board:
    """One rank's view of the `store` of its process group. `name` is the prefix of all keys."""

    def __init__(self, group: Group, store: Any, name: str, counts: Counter[str]) -> None:
        self.group = group
        self.host = socket.gethostname()
        # A clone has its own connection: a wait blocks it, and other threads use the group's.
        self._store: Any = dist.PrefixStore(name, store.clone())  # type: ignore[attr-defined]
        self._counts = counts
        self._passing = Passing(self.host)
        self._longest_pause_seconds = max(
            _LONGEST_PAUSE_SECONDS, group.world_size / _READS_PER_SECOND
        )
        self._note(self._passing)

    def number(self, kind: str) -> int:
        """Return how often this method was called with `kind`; the same on every rank."""
        self._counts[kind] += 1
        return self._counts[kind]

    def come_to(self, what: str) -> str:
        """Write that this rank has reached the call `what`, and return the line of the program."""
        place = place_of_caller()
        self._note(Passing(self.host, what, place, time.time()))
        return place

    def exchange(
        self, kind: str, value: bytes, timeout_seconds: float, what: str | None = None
    ) -> list[bytes]:
        """Return the values of all ranks, in order, once every rank has called this.

        Exchanges of each kind are counted by themselves. An error message calls the exchange
        `what`, by default `kind`.

        Raises:
            RankWaitError: a rank did not come in time; the message names it.
        """
        what = what or kind
        place = self.come_to(what)
        number = self.number(kind)
        key, before = f"{kind}/{number}", f"{kind}/{number - 1}"
        rank, ranks = self.group.rank, range(self.group.world_size)
        with self._connected(what):
            self._store.set(f"{key}/{rank}", value)
            if self._store.add(f"{key}/arrived", 1) == len(ranks):
                self._store.set(f"{key}/all", b"")

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
        with self._connected("the others' progress"):
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
        """Wait until ``is_done()``. `waiting` is the exchange, if every rank must reach it.

        Raises:
            RankWaitError: the ``missing()`` ranks did not come in time.
            RankMismatchError: see `look_around`.
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
                break  # they came just now
            if waiting is not None and now - looked > _LOOK_SECONDS:
                looked = now
                self.look_around(waiting)
            time.sleep(pause_seconds)
            pause_seconds = min(1.5 * pause_seconds, self._longest_pause_seconds)
        self.stop_waiting()

    def look_around(self, waiting: Waiting) -> None:
        """Write that this rank waits at `waiting`, and check that the others can come there.

        Raises:
            RankMismatchError: another rank waits at another place for this rank. What this rank
                has written stays, so that the other rank raises, too.
        """
        if not blocks_main_thread():
            return  # the main thread may still go to where the others wait
        if self._passing.waiting != waiting:
            self._note(self._passing._replace(waiting=waiting))
        for rank in range(self.group.world_size):
            other = self._passing_of(rank)
            there = None if other is None else other.waiting
            if there is None or there == waiting or self._counts[there.kind] >= there.number:
                continue
            in_model = MEETING in (waiting.kind, there.kind)
            raise RankMismatchError(
                f"rank {self.group.rank} waits at {self._passing.what} ({self._passing.place}), "
                f"while {self._describe(rank)}, and waits there for this rank: neither can "
                "go on. Let all ranks make the same calls in the same order"
                + (f". {UNEVEN_BATCHES}" if in_model else "")
            )

    def stop_waiting(self) -> None:
        """Withdraw what `look_around` wrote."""
        if self._passing.waiting is not None:
            self._note(self._passing._replace(waiting=None))

    def ranks_elsewhere(self, waiting: Waiting) -> list[int]:
        """Return the other ranks that have not written that they wait at `waiting`."""
        others = [rank for rank in range(self.group.world_size) if rank != self.group.rank]
        passings = {rank: self._passing_of(rank) for rank in others}
        return [rank for rank, at in passings.items() if at is None or at.waiting != waiting]

    def late(
        self,
        ranks: Sequence[int],
        timeout_seconds: float,
        what: str,
        place: str,
        remedy: str | None = None,
    ) -> RankWaitError:
        """Return the error that names the ranks that did not come, and what the user can do."""
        if remedy is None:
            from_launcher = timeout_seconds == time_limit_seconds()
            option = "the launcher's --timeout" if from_launcher else "timeout_seconds"
            remedy = f"Check what happens there, or allow more time with {option}"
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
        """Return the ranks of this node; None if the launcher has not said which they are."""
        local = LocalRank.read()
        if local is None:
            return None
        first = self.group.rank - local.rank  # launchers number the ranks of a node in a row
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
        return f"{named} last came to {passing.what} at {passing.place}, {ago:.0f} s ago"

    def _note(self, passing: Passing) -> None:
        self._passing = passing
        with self._connected("the others"):
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
                f"rank {self.group.rank} lost the store in which the ranks met while it was at "
                f"{what}: the process that holds it, the launcher or rank 0, has ended ({error})"
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
def wait_for_hosts(work: Any, what: str, number: int) -> None:
    """Wait for the collective `work` between the hosts, the `number`-th on every rank.

    A collective that times out does not report which rank is missing; the store does.

    Raises:
        RankWaitError: a rank did not come within the group's time limit; the message names it.
        RankMismatchError: this rank and another wait for each other at different places.
    """
    started = time.monotonic()
    if _is_done_soon(work):
        return
    board = board_of(current_context().group)
    waiting, place = Waiting(MEETING, number), board.come_to(what)
    try:
        while not _is_done_soon(work):
            board.look_around(waiting)
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
        # Unless the collective failed, only the wait timed out, and the collective goes on.
        if work.is_completed():
            raise
        return False
    return True
