"""A commit of several ranks leaves the old series or the new one, whichever of them stops."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from crashing_disk import Change, RecordingDisk, crashes_of, write_tree
from ranks_in_threads import ThreadRanks, interleave, run_on_ranks

from anyrig.checkpoint.commit import Check
from anyrig.checkpoint.manifest import FileFact, Manifest
from anyrig.checkpoint.parallel_commit import ParallelCommit
from anyrig.checkpoint.series import Series
from anyrig.errors import CheckpointError, OtherRankError, RankWaitError

COUNT, SAVES = 3, 3


def require_names(folder: Path, files: Mapping[str, FileFact]) -> None:
    assert files.keys() == {f"model.{rank}" for rank in range(COUNT)}


def save(ranks: ThreadRanks, series: Series, number: int, check: Check = require_names) -> None:
    def describe(number: int, files: dict[str, FileFact]) -> Manifest:
        return Manifest(number, None, None, None, "", COUNT, time.time(), {}, files)

    commit = ParallelCommit(ranks, series, ranks.disk)
    commit.begin()
    failed: BaseException | None = None
    try:
        contents = {f"model.{ranks.rank}": [f"rank {ranks.rank} ".encode(), b"%d" % number]}
        commit.write(contents, describe, check, keep=1)
    except Exception as error:
        failed = error
    ranks.agree({}, failed)
    if ranks.rank == 0:
        ranks.disk.announce(number)


def content_of(path: Path) -> set[int]:
    found = set()
    for rank in range(COUNT):
        words = (path / f"model.{rank}").read_text().split()
        assert words[:2] == ["rank", str(rank)]
        found.add(int(words[2]))
    return found


def record(folder: Path) -> list[ThreadRanks]:
    series = Series(folder / "a")

    def save_often(ranks: ThreadRanks) -> None:
        for number in range(1, SAVES + 1):
            save(ranks, series, number)

    ranks, errors = run_on_ranks(COUNT, save_often)
    assert errors == [None] * COUNT
    return ranks


def breaches(changes: list[Change], live: Path, replayed: Path, most: int) -> Iterator[str]:
    """Yield what is wrong after each crash."""
    for announced, tree in sorted(set(crashes_of(changes, live, most)), key=repr):
        replayed.mkdir()
        write_tree(tree, replayed)
        crashed = Series(replayed / "a")
        found = crashed.latest() if crashed.folder.exists() else None
        number = 0 if found is None else found.manifest.number
        if number < announced:
            yield f"found {number}, announced {announced}: {tree}"
        if found is not None and content_of(found.path) != {number}:
            yield f"mixed {number}: {tree}"
        shutil.rmtree(replayed)


def replay(tmp_path: Path, orders: int, most: int) -> int:
    """Check the crashes of some orders of the ranks; return how many orders there were."""
    live = tmp_path / "live"
    live.mkdir()
    ranks, seen = record(live), set()
    for seed in range(orders):
        changes = interleave(ranks, random.Random(seed))
        seen.add(repr(changes))
        assert not [*breaches(changes, live, tmp_path / "replayed", most)], seed
    return len(seen)


def test_every_crash_leaves_a_whole_checkpoint_in_any_order_of_the_ranks(tmp_path: Path) -> None:
    assert replay(tmp_path, orders=4, most=4) > 2


@pytest.mark.sweep
def test_every_crash_in_many_orders_of_the_ranks(tmp_path: Path) -> None:
    assert replay(tmp_path, orders=60, most=40) > 50


@pytest.mark.parametrize("mistake", ["no wait for the ranks", "no sync by a rank"])
def test_a_mistake_in_the_protocol_would_be_noticed(mistake: str, tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    ranks = record(live)
    found: str | None = None
    for seed in range(3):
        changes = interleave(ranks, random.Random(seed), waits=mistake != "no wait for the ranks")
        if mistake == "no sync by a rank":
            changes = [each for each in changes if each[0] != "sync" or each[1].name != "model.1"]
        try:
            found = found or next(breaches(changes, live, tmp_path / "replayed", most=4), None)
        except KeyError:  # the folder that a rank writes into is gone
            found = "a rank writes after the commit"
    assert found


class Full(RecordingDisk):
    def sync(self, file: BinaryIO) -> None:
        raise OSError(28, "No space left on device")


class Slow(RecordingDisk):
    def create(self, path: Path) -> BinaryIO:
        time.sleep(0.2)  # the culprit fails meanwhile, and the folder must stay
        return super().create(path)


@pytest.mark.parametrize("culprit", range(COUNT))
def test_a_rank_that_fails_is_named_and_leaves_the_series_as_before(
    culprit: int, tmp_path: Path
) -> None:
    series = Series(tmp_path / "a")

    def work(ranks: ThreadRanks) -> None:
        save(ranks, series, 1)
        ranks.disk = Full() if ranks.rank == culprit else Slow()
        save(ranks, series, 2)

    _, errors = run_on_ranks(COUNT, work)
    for rank, error in enumerate(errors):
        assert isinstance(error, CheckpointError if rank == culprit else OtherRankError)
        assert f"model.{culprit} cannot be written: No space left on device" in str(error)
        if rank != culprit:
            assert str(error).startswith(f"rank {culprit} failed in a save: CheckpointError: ")
    assert [path.name for path in series.folder.iterdir()] == ["000001"]


def test_files_that_make_no_checkpoint_leave_the_series_as_before(tmp_path: Path) -> None:
    series = Series(tmp_path / "a")

    def refuse(folder: Path, files: Mapping[str, FileFact]) -> None:
        raise CheckpointError(f"{sorted(files)} cannot be loaded")

    def work(ranks: ThreadRanks) -> None:
        save(ranks, series, 1)
        save(ranks, series, 2, refuse)

    _, errors = run_on_ranks(COUNT, work)
    assert [type(error) for error in errors] == [CheckpointError, OtherRankError, OtherRankError]
    assert "['model.0', 'model.1', 'model.2'] cannot be loaded" in str(errors[-1])
    assert [path.name for path in series.folder.iterdir()] == ["000001"]


class Elsewhere(ThreadRanks):
    """The last rank looks for the temporary folder on a disk of its own."""

    def _exchange(self, value: Any) -> list[Any]:
        values = super()._exchange(value)
        if self.rank == COUNT - 1:
            values[0]["text"] = values[0]["text"].replace("/a/.tmp-", "/b/.tmp-")
        return values


def test_nodes_without_a_shared_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyrig.checkpoint.parallel_commit._VISIBLE_SECONDS", 0.1)
    series = Series(tmp_path / "a")
    _, errors = run_on_ranks(COUNT, lambda ranks: save(ranks, series, 1), Elsewhere)
    assert isinstance(errors[-1], CheckpointError)
    for error in errors:
        assert f"rank {COUNT - 1} on " in str(error)
        assert "the nodes do not share this folder. Save to a folder that all nodes" in str(error)
        assert "sharded=False" in str(error)
    assert [*series.folder.iterdir()] == []


class Later(Elsewhere):
    """The last rank sees the temporary folder later, as on a network file system."""

    def _exchange(self, value: Any) -> list[Any]:
        values = super()._exchange(value)
        if self.rank == COUNT - 1 and "/b/.tmp-" in values[0]["text"]:
            folder = Path(values[0]["text"].partition(" ")[2])
            threading.Timer(0.1, folder.mkdir, kwargs={"parents": True}).start()
        return values


def test_a_folder_that_a_node_sees_later_is_waited_for(tmp_path: Path) -> None:
    _, errors = run_on_ranks(COUNT, lambda ranks: save(ranks, Series(tmp_path / "a"), 1), Later)
    # It sees a folder of another name here, so that its files do not arrive.
    assert f"model.{COUNT - 1} is missing: rank {COUNT - 1} has written it" in str(errors[0])


class Alone(ThreadRanks):
    """The other ranks do not come."""

    def _exchange(self, value: Any) -> list[Any]:
        raise RankWaitError("rank 1 did not take part", [1])


def test_a_rank_that_does_not_come_leaves_no_folder(tmp_path: Path) -> None:
    series = Series(tmp_path / "a")
    _, errors = run_on_ranks(1, lambda ranks: save(ranks, series, 1), Alone)
    assert isinstance(errors[0], RankWaitError)
    assert [*series.folder.iterdir()] == []


def test_a_file_that_rank_0_does_not_see_is_refused(tmp_path: Path) -> None:
    class Vanishing(RecordingDisk):
        def sync(self, file: BinaryIO) -> None:
            super().sync(file)
            Path(file.name).unlink()

    def work(ranks: ThreadRanks) -> None:
        if ranks.rank == 1:
            ranks.disk = Vanishing()
        save(ranks, Series(tmp_path / "a"), 1)

    _, errors = run_on_ranks(COUNT, work)
    assert "model.1 is missing: rank 1 has written it. Save to a folder that all" in str(errors[0])
    assert isinstance(errors[2], OtherRankError)
    assert [*(tmp_path / "a").iterdir()] == []
