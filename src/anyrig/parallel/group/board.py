"""What ranks tell each other through the store in which they met, whatever carries their tensors.

It needs no device and no collective, so it works while a device is busy, and it can say of a rank
that did not come who it is, where it runs, and what it last passed.

::

    exchange 7 of "barrier"     rank 0                 rank 1                 keys afterwards
                                set 7/0, arrived 1     .                      6/0 6/1  7/0
                                wait for 7/all         set 7/1, arrived 2
                                                       set 7/all              7/0 7/1  7/all
                                delete 6/0, 6/all      delete 6/1

Whoever is through exchange 7 knows that all have left exchange 6, so of each kind there are the
keys of two exchanges at most, however many there were.

More than 400 lines: posting, waiting and naming who is late share the store's keys.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

from ...devices.rank import LocalRank
from ...errors import RankMismatchError, RankWaitError
from ...processes.time_limit import time_limit_seconds
from ...processes.waits import waits_for_ranks
from .membership import Group, current_context

# Between two looks at the store, and the most of these, over all ranks, in a second.
_SHORTEST_PAUSE_SECONDS = 0.0002
_LONGEST_PAUSE_SECONDS = 0.02
_LOOKS_A_SECOND = 5000

# A wait that lasts as long is announced, and the other ranks' waits are looked at as often.
_LOOK_SECONDS = 1.0

# Of a thousand ranks that did not come, the places of more are of no interest.
_MOST_TOLD = 15

# The kind of what the hosts exchange by a collective, not by the store.
MEETING = "meeting"

# Why ranks come to different calls of a model more often than for anything else.
UNEVEN_BATCHES = (
    "Where ranks have different numbers of batches, take anyrig.distribute(loader), or put the "
    "loop in model.join()"
)

# The function in which a thread waits for the backward pass: torch/autograd/graph.py.
_BACKWARD = "_engine_run_backward"

# Frames that are not the program's.
_NOT_THE_PROGRAM = (str(Path(__file__).parents[2]) + os.sep, f"{os.sep}torch{os.sep}")


@dataclass(frozen=True)
class Waiting:
    """A point that all ranks must come to: the `number`-th of its kind."""

    kind: str
    number: int


@dataclass(frozen=True)
class Passing:
    """Where a rank last was.

    Attributes:
        host: the machine it runs on.
        what: what it came to, such as ``"a barrier"``; None if it came to nothing yet.
        place: the line of Python, as ``"train.py:31 in step"``.
        time_seconds: when, by its machine's clock, since 1970.
        waiting: at what its main thread has waited for a while; None if it has not.
    """

    host: str
    what: str | None = None
    place: str | None = None
    time_seconds: float | None = None
    waiting: Waiting | None = None

    def encode(self) -> str:
        """Return a text for the store."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: bytes) -> Passing:
        """Return what `encode` made a text of."""
        said = json.loads(text)
        waiting = said.pop("waiting")
        return cls(**said, waiting=waiting and Waiting(**waiting))


class Board:
    """The store of one process group, as one rank of it sees it.

    Attributes:
        group: whose board it is.
        host: the name of this machine.

    Args:
        group: whose board it is.
        store: in which the ranks met.
        name: of this board in the store.
        counts: see `Context`.
    """

    def __init__(self, group: Group, store: Any, name: str, counts: Counter[str]) -> None:
        self.group = group
        self.host = socket.gethostname()
        # A connection of its own: a wait holds its connection, and other threads use the group's.
        self._store: Any = dist.PrefixStore(name, store.clone())  # type: ignore[attr-defined]
        self._counts = counts
        self._passing = Passing(self.host)
        self._longest_pause_seconds = max(
            _LONGEST_PAUSE_SECONDS, group.world_size / _LOOKS_A_SECOND
        )
        self._note(self._passing)

    def number(self, what: str) -> int:
        """Return how often this was asked of `what`; the ranks ask alike, so they agree."""
        self._counts[what] += 1
        return self._counts[what]

    def come_to(self, what: str) -> str:
        """Note that this rank comes to `what`, for those who may wait for it; return the place."""
        place = place_of_caller()
        self._note(Passing(self.host, what, place, time.time()))
        return place

    def exchange(
        self, kind: str, value: bytes, timeout_seconds: float, what: str | None = None
    ) -> list[bytes]:
        """Return what every rank gave, in order; each waits until all have come.

        Args:
            kind: tells one sequence of exchanges from others.
            value: of this rank.
            timeout_seconds: how long to wait for the others.
            what: what an error calls it.

        Raises:
            RankWaitError: some rank did not come in time; the message names it.
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

        self.wait_for(f"{key}/all", timeout_seconds, what, missing, place, Waiting(kind, number))
        with self._connected(what):
            values: list[bytes] = self._store.multi_get([f"{key}/{other}" for other in ranks])
            if number > 1:
                self._store.delete_key(f"{before}/{rank}")
            if number > 1 and rank == 0:
                self._store.delete_key(f"{before}/arrived")
                self._store.delete_key(f"{before}/all")
        return values

    def post(self, key: str, value: bytes) -> None:
        """Leave `value` for others to `collect`."""
        with self._connected(key):
            self._store.set(key, value)

    def collect(
        self, key: str, readers: int, timeout_seconds: float, what: str, poster: int, place: str
    ) -> bytes:
        """Return what `poster` posts there; the last of `readers` takes it down.

        Raises:
            RankWaitError: it was not there in time.
        """
        self.wait_for(key, timeout_seconds, what, lambda: [poster], place)
        with self._connected(what):
            value: bytes = self._store.get(key)
            if self._store.add(f"{key}/read", 1) == readers:
                self._store.delete_key(key)
                self._store.delete_key(f"{key}/read")
        return value

    def look(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return what stands at each key now, None where nothing does."""
        with self._connected("the others' progress"):
            return [self._store.get(key) if self._store.check([key]) else None for key in keys]

    def take_down(self, keys: Sequence[str]) -> None:
        """Remove these keys, of which some may not be there."""
        with self._connected("the end"):
            for key in keys:
                self._store.delete_key(key)

    @waits_for_ranks
    def wait_for(
        self,
        key: str,
        timeout_seconds: float,
        what: str,
        missing: Callable[[], Sequence[int]],
        place: str,
        waiting: Waiting | None = None,
    ) -> None:
        """Wait until `key` is there.

        Args:
            key: in the store.
            timeout_seconds: how long to wait.
            what: what an error calls it.
            missing: returns the ranks that were waited for.
            place: the line of the program.
            waiting: what the others must come to as well, if all ranks must.

        Raises:
            RankWaitError: it was not in time; the message says who was waited for.
            RankMismatchError: another rank waits elsewhere, for this one.
        """
        # Looked at again and again: the store's own wait cannot be interrupted, and prints a
        # warning each time that it is not answered.
        started = looked = time.monotonic()
        pause_seconds = _SHORTEST_PAUSE_SECONDS
        while not self._is_there(key, what):
            now = time.monotonic()
            if now - started > timeout_seconds:
                late = list(missing())
                if late:
                    raise self.late(late, timeout_seconds, what, place)
                break  # they came while this was found out
            if waiting is not None and now - looked > _LOOK_SECONDS:
                looked = now
                self.look_around(waiting)
            time.sleep(pause_seconds)
            pause_seconds = min(1.5 * pause_seconds, self._longest_pause_seconds)
        self.stop_waiting()

    def _is_there(self, key: str, what: str) -> bool:
        with self._connected(what):
            return bool(self._store.check([key]))

    def look_around(self, waiting: Waiting) -> None:
        """Note where this rank has waited for a while, and see whether the others can come there.

        Raises:
            RankMismatchError: another rank waits for this one elsewhere, so neither can go on. It
                is to see the same, so the note stays until this rank comes to something else.
        """
        if not _holds_main_thread():
            return  # the main thread may come where the others wait
        if self._passing.waiting != waiting:
            self._note(replace(self._passing, waiting=waiting))
        for rank in range(self.group.world_size):
            other = self._passing_of(rank)
            there = None if other is None else other.waiting
            if there is None or there == waiting or self._counts[there.kind] >= there.number:
                continue
            in_model = MEETING in (waiting.kind, there.kind)
            raise RankMismatchError(
                f"rank {self.group.rank} waits at {self._passing.what} ({self._passing.place}), "
                f"while {self._describe(rank)}, and waits there, where this rank has not come: "
                "neither can go on. Let all ranks come to the same calls in the same order"
                + (f". {UNEVEN_BATCHES}" if in_model else "")
            )

    def stop_waiting(self) -> None:
        """Note that this rank waits no longer, if it had been noted."""
        if self._passing.waiting is not None:
            self._note(replace(self._passing, waiting=None))

    def elsewhere(self, waiting: Waiting) -> list[int]:
        """Return the ranks that have not noted that they wait there, too."""
        passings = [(rank, self._passing_of(rank)) for rank in range(self.group.world_size)]
        return [
            rank
            for rank, passing in passings
            if rank != self.group.rank and (passing is None or passing.waiting != waiting)
        ]

    def late(
        self,
        ranks: Sequence[int],
        timeout_seconds: float,
        what: str,
        place: str,
        remedy: str | None = None,
    ) -> RankWaitError:
        """Return the error that names the ranks that did not come; `remedy` may follow it."""
        if remedy is None:
            from_launcher = timeout_seconds == time_limit_seconds()
            option = "the launcher's --timeout" if from_launcher else "timeout_seconds"
            remedy = f"See what is done there, or allow more with {option}"
        numbers = [str(rank) for rank in ranks]
        named = " and ".join([text for text in (", ".join(numbers[:-1]), numbers[-1]) if text])
        plural = "s" if len(ranks) > 1 else ""
        told = [self._describe(rank) for rank in ranks[:_MOST_TOLD]]
        if len(ranks) > _MOST_TOLD:
            told.append(f"of {len(ranks) - _MOST_TOLD} more nothing is said here")
        return RankWaitError(
            f"rank {self.group.rank} waited at {what} ({place}), and rank{plural} "
            f"{named} did not take part within {timeout_seconds:g} s: {'; '.join(told)}. {remedy}",
            ranks,
        )

    def host_of(self, rank: int) -> str | None:
        """Return the machine that `rank` runs on, or None if that is not known yet."""
        passing = self._passing_of(rank)
        if passing is not None:
            return passing.host
        return self.host if rank in (self.ranks_here() or ()) else None

    def ranks_here(self) -> range | None:
        """Return the ranks of this machine, or None if no launcher says which they are."""
        local = LocalRank.read()
        if local is None:
            return None
        first = self.group.rank - local.rank  # a launcher numbers the ranks of a machine in a row
        return range(first, first + local.world_size)

    def name_of(self, rank: int) -> str:
        """Return the rank in words, with its machine if there are several."""
        local = LocalRank.read()
        if local is not None and local.world_size == self.group.world_size:
            return f"rank {rank}"
        return f"rank {rank} on {self.host_of(rank) or 'an unknown host'}"

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
            self._store.set(f"rank/{self.group.rank}", passing.encode())

    def _passing_of(self, rank: int) -> Passing | None:
        (said,) = self.look([f"rank/{rank}"])
        return None if said is None else Passing.decode(said)

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


def _holds_main_thread() -> bool:
    """Return whether the main thread goes on only after this one: PyTorch computes the backward
    pass of a GPU in a thread of its own, and the main thread waits for the pass.
    """
    if threading.current_thread() is threading.main_thread():
        return True
    frame = _frame_of_main_thread()
    while frame is not None and _find_program(frame) is not frame:
        if frame.f_code.co_name == _BACKWARD:
            return True
        frame = frame.f_back
    return False


def _frame_of_main_thread() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def place_of_caller() -> str:
    """Return the line of the program that is running, as "train.py:31 in step".

    A thread of PyTorch's backward pass has none; the main thread, which waits for the pass, has.
    """
    frame = sys._getframe(1)
    found = _find_program(frame)
    if found is None and (main := _frame_of_main_thread()) is not None and _holds_main_thread():
        found = _find_program(main)
    frame = found or frame
    name = Path(frame.f_code.co_filename).name
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _find_program(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is the program's own."""
    while frame is not None and any(part in frame.f_code.co_filename for part in _NOT_THE_PROGRAM):
        frame = frame.f_back
    return frame
