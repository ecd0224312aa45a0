"""Ranks that are threads of one process, with a disk each, and the orders in which they may run.

Each rank records what it changes and where it meets the others::

    rank 0    make_folder  arrive 1 ─▶ leave 1  create  write  sync  collect 1  …  rename
    rank 1                 arrive 1 ─▶ leave 1  create  write  sync  post

An order of all ranks is possible if it keeps the order of each rank, if no rank leaves a meeting
before all have arrived, and if nothing is collected before it is posted.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from typing import Any

from crashing_disk import Change, RecordingDisk

from anyrig.checkpoint.over_ranks import Ranks

LIMIT_SECONDS = 20.0


class Meetings:
    """The messages that the ranks exchange, in memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.barrier = threading.Barrier(count)
        self.values: list[Any] = [None] * count
        self.posted: dict[str, Any] = {}
        self.changed = threading.Condition()


class ThreadRanks(Ranks):
    """One rank of several threads. `disk` records its changes and its meetings."""

    def __init__(self, rank: int, meetings: Meetings) -> None:
        self.rank, self.count, self.number = rank, meetings.count, 0
        self.timeout_seconds = LIMIT_SECONDS
        self.disk = RecordingDisk()
        self._what = "a save"
        self._meetings = meetings
        self._met = 0

    def _exchange(self, value: Any) -> list[Any]:
        self._met += 1
        self.disk.changes.append(("arrive", self._met))
        self._meetings.values[self.rank] = json.dumps(value)
        self._meetings.barrier.wait(LIMIT_SECONDS)
        values = [json.loads(each) for each in self._meetings.values]
        self._meetings.barrier.wait(LIMIT_SECONDS)
        self.disk.changes.append(("leave", self._met))
        return values

    def post(self, key: str, value: Any) -> None:
        self.disk.changes.append(("post", (key, self.rank)))
        with self._meetings.changed:
            self._meetings.posted[f"{key}/{self.rank}"] = json.dumps(value)
            self._meetings.changed.notify_all()

    def collect(self, key: str, rank: int) -> Any:
        with self._meetings.changed:
            name = f"{key}/{rank}"
            arrived = self._meetings.changed.wait_for(
                lambda: name in self._meetings.posted, LIMIT_SECONDS
            )
            assert arrived, f"rank {rank} has posted nothing"
        self.disk.changes.append(("collect", (key, rank)))
        return json.loads(self._meetings.posted[name])


def run_on_ranks(
    count: int, work: Callable[[ThreadRanks], object], kind: type[ThreadRanks] = ThreadRanks
) -> tuple[list[ThreadRanks], list[BaseException | None]]:
    """Run `work` on each rank; return the ranks, and the error of each."""
    meetings = Meetings(count)
    ranks = [kind(rank, meetings) for rank in range(count)]
    errors: list[BaseException | None] = [None] * count

    def run(ranks: ThreadRanks) -> None:
        try:
            work(ranks)
        except BaseException as error:
            errors[ranks.rank] = error

    threads = [threading.Thread(target=run, args=(each,)) for each in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_SECONDS)
        assert not thread.is_alive()
    return ranks, errors


def interleave(ranks: list[ThreadRanks], draw: random.Random, waits: bool = True) -> list[Change]:
    """Return the changes of all ranks in one possible order.

    Args:
        ranks: what they have recorded.
        draw: chooses. Some ranks are faster than others, so that extreme orders are drawn, too.
        waits: whether a collector waits for what is posted; False breaks the protocol.
    """
    logs = [list(each.disk.changes) for each in ranks]
    speeds = [draw.choice([0.01, 1, 100]) for _ in ranks]
    merged: list[Change] = []
    arrived: dict[Any, int] = {}
    posted: set[Any] = set()
    while any(logs):
        able = [
            rank
            for rank, log in enumerate(logs)
            if log
            and not (log[0][0] == "leave" and arrived.get(log[0][1], 0) < len(ranks))
            and not (waits and log[0][0] == "collect" and log[0][1] not in posted)
        ]
        (rank,) = draw.choices(able, [speeds[each] for each in able])
        change = logs[rank].pop(0)
        if change[0] == "arrive":
            arrived[change[1]] = arrived.get(change[1], 0) + 1
        elif change[0] == "post":
            posted.add(change[1])
        elif change[0] not in ("leave", "collect"):
            merged.append(change)
    return merged
