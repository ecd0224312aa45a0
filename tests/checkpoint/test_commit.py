"""A commit leaves the old series or the new one, wherever it stops."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from crashing_disk import RecordingDisk, crashes_of, write_tree
from torch import nn

import anyrig
from anyrig.checkpoint.commit import commit
from anyrig.checkpoint.describe import describe
from anyrig.checkpoint.disk import Disk
from anyrig.checkpoint.manifest import FileFact, Manifest, read_manifest
from anyrig.checkpoint.series import Series
from anyrig.checkpoint.verify import verify_folder
from anyrig.checkpoint.writer_mark import own_mark
from anyrig.errors import CheckpointDamagedError, CheckpointError


class UnsyncedDisk(Disk):
    """Saves time where no crash follows."""

    def sync(self, file: BinaryIO) -> None: ...

    def sync_folder(self, path: Path) -> None: ...


def save(
    series: Series,
    text: str,
    step: int | None = None,
    keep: int | None = None,
    disk: Disk | None = None,
    metric: float | None = None,
    best: str | None = None,
) -> Path:
    contents = {"model.safetensors": [text.encode(), b"..."], "values.pt": [text[::-1].encode()]}

    def describe(number: int, files: dict[str, FileFact]) -> Manifest:
        return Manifest(number, step, metric, best, "one process", 1, time.time(), {}, files)

    return commit(series, contents, describe, keep=keep, disk=disk).path


def content_of(path: Path) -> str:
    text = (path / "values.pt").read_text()[::-1]
    assert (path / "model.safetensors").read_text() == f"{text}..."
    return text


def names_in(series: Series) -> list[str]:
    return sorted(path.name for path in series.folder.iterdir())


class TestEveryCrash:
    # Above the number of states of any prefix: all of them are tried, 3,231 with repetitions.
    MOST_PER_PREFIX = 1000

    def test_leaves_a_whole_checkpoint_that_is_not_older_than_the_last_announced(
        self, tmp_path: Path
    ) -> None:
        live, replayed = tmp_path / "live", tmp_path / "replayed"
        live.mkdir()
        disk, series = RecordingDisk(), Series(live / "runs" / "a")
        for number in range(1, 5):
            save(series, f"content {number}", step=10 * number, keep=2, disk=disk)
            disk.announce(number)
        crashes = list(crashes_of(disk.changes, live, self.MOST_PER_PREFIX))
        assert len(crashes) == 3231
        states = set(crashes)
        renames = [change for change in disk.changes if change[0] == "rename"]
        assert len(renames) == 4 + 2
        assert len(states) > 250
        for index, (announced, tree) in enumerate(sorted(states, key=repr)):
            replayed.mkdir()
            write_tree(tree, replayed)
            crashed = Series(replayed / "runs" / "a")
            found = crashed.latest() if crashed.folder.exists() else None
            if announced:
                assert found is not None
                assert found.manifest.number >= announced
            if found is not None:
                assert content_of(found.path) == f"content {found.manifest.number}"
            if index % 20 == 0:  # and the next save works
                path = save(crashed, "next", keep=2, disk=UnsyncedDisk())
                latest = crashed.latest()
                assert latest is not None
                assert latest.path == path
                assert latest.manifest.number > announced
            shutil.rmtree(replayed)

    def test_leaves_a_training_that_loads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live, replayed = tmp_path / "live", tmp_path / "replayed"
        live.mkdir()
        disk, model = RecordingDisk(), nn.Linear(3, 2)
        monkeypatch.setattr("anyrig.checkpoint.commit.Disk", lambda: disk)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for number in range(1, 4):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            nn.init.constant_(model.weight, number)
            anyrig.save(live / "a", model=model, optimizer=optimizer, step=number, keep=1)
            disk.announce(number)
        states = sorted(set(crashes_of(disk.changes, live, 1000)), key=repr)
        after_the_first = [state for state in states if state[0]]
        assert len(after_the_first) > 150
        for announced, tree in random.Random(0).sample(after_the_first, 60):
            replayed.mkdir()
            write_tree(tree, replayed)
            found = anyrig.load(replayed / "a", model=model, optimizer=optimizer)
            assert found.step is not None
            assert found.step >= announced
            assert (model.weight == found.step).all()
            shutil.rmtree(replayed)

    @pytest.mark.parametrize("left_out", ["sync", "sync_folder"], ids=["of a file", "of a folder"])
    def test_would_be_noticed_without_a_sync(self, left_out: str, tmp_path: Path) -> None:
        disk, series = RecordingDisk(), Series(tmp_path / "a")
        for number in range(1, 4):
            save(series, f"content {number}", keep=1, disk=disk)
            disk.announce(number)
        changes = [change for change in disk.changes if change[0] != left_out]
        breaches = 0
        for index, (announced, tree) in enumerate(crashes_of(changes, tmp_path, 20)):
            replayed = tmp_path / f"replayed{index}"
            replayed.mkdir()
            write_tree(tree, replayed)
            crashed = Series(replayed / "a")
            found = crashed.latest() if crashed.folder.exists() else None
            breaches += bool(announced) and (found is None or found.manifest.number < announced)
        assert breaches > 5


class TestSeries:
    def test_numbers_go_up_and_names_have_the_step(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "runs" / "a")
        save(series, "a")
        save(series, "b", step=1200)
        assert names_in(series) == ["000001", "000002-step-1200"]

    def test_keeps_the_newest_and_the_best(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        for metric in (0.5, 0.9, 0.7, 0.6, float("nan")):
            save(series, str(metric), keep=2, metric=metric, best="max")
        assert names_in(series) == ["000002", "000004", "000005"]
        best = series.best()
        assert best is not None
        assert content_of(best.path) == "0.9"

    def test_the_lowest_metric_may_be_the_best(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        for metric in (0.5, 0.2, 0.7):
            save(series, str(metric), keep=1, metric=metric, best="min")
        assert names_in(series) == ["000002", "000003"]

    def test_damaged_folders_are_skipped_and_do_not_count(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        for text in "abc":
            save(series, text)
        (series.folder / "000003" / "values.pt").write_bytes(b"")
        damaged: list[CheckpointError] = []
        found = series.latest(damaged=damaged)
        assert found is not None
        assert content_of(found.path) == "b"
        assert [str(error) for error in damaged] == [
            f"{series.folder}/000003/values.pt has 0 bytes, and 1 were saved. Load another "
            "checkpoint of the series"
        ]
        save(series, "d", keep=2)
        assert names_in(series) == ["000002", "000003", "000004"]

    def test_a_flipped_bit_is_found_by_the_hash(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        save(series, "a")
        path = save(series, "b") / "model.safetensors"
        path.write_bytes(bytes([path.read_bytes()[0] ^ 4]) + path.read_bytes()[1:])
        damaged: list[CheckpointError] = []
        found = series.latest(damaged=damaged)
        assert found is not None
        assert found.manifest.number == 1
        assert "model.safetensors was altered" in str(damaged[0])
        unhashed = series.latest(hashes=False)
        assert unhashed is not None
        assert unhashed.manifest.number == 2

    def test_a_folder_renamed_to_another_number_is_reported(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        save(series, "a", step=5)
        newest = save(series, "b", step=6)
        renamed = (series.folder / "000001-step-5").rename(series.folder / "000009-step-5")
        damaged: list[CheckpointError] = []
        found = series.latest(damaged=damaged)
        assert found is not None
        assert found.path == newest
        problem = f"{renamed} was renamed: it is save 1. Rename it to 000001-step-5"
        assert [str(error) for error in damaged] == [problem]
        assert [str(finding) for finding in verify_folder(renamed)] == [problem]
        assert verify_folder(newest) == ()
        entries = {entry.name: entry for entry in describe(series.folder).checkpoints}
        assert entries[renamed.name].problem == problem
        assert entries[newest.name].problem is None
        elsewhere = renamed.rename(tmp_path / "kept")  # a name without a number is no mistake
        assert verify_folder(elsewhere) == ()

    def test_a_missing_series_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="does not exist, so it has no checkpoints"):
            Series(tmp_path / "nothing").latest()

    def test_a_checkpoint_is_no_series(self, tmp_path: Path) -> None:
        path = save(Series(tmp_path / "a"), "a")
        with pytest.raises(CheckpointError, match="save to the folder of its series"):
            save(Series(path), "b")

    def test_folders_are_sorted_by_number_the_newest_first(self, tmp_path: Path) -> None:
        names = ["1000000-step-1", "999999-step-2", "000002-step-1", "000002"]
        for name in (*sorted(names), "notes", "12345", ".tmp-000009-a"):
            (tmp_path / name).mkdir()
        assert [path.name for path in Series(tmp_path).folders()] == names

    def test_a_number_of_no_save_does_not_count_and_is_not_used(self, tmp_path: Path) -> None:
        for name in ("000001", "000002-step-5", "000007"):
            (tmp_path / name).mkdir()
        assert Series(tmp_path).next_number() == 3
        (tmp_path / "000007" / "manifest.json").write_text("damaged")
        assert Series(tmp_path).next_number() == 8
        assert Series(tmp_path / "nothing").next_number() == 1

    def test_surplus_is_older_than_the_newest_and_the_oldest_is_first(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        for step, metric in enumerate((0.1, 0.9, 0.2, 0.3, 0.4)):
            save(series, str(step), metric=metric, best="max")
        names = [path.name for path in series.surplus(2)]
        assert names == ["000001", "000003"]
        assert series.surplus(5) == []
        (series.folder / "000005" / "values.pt").write_bytes(b"")  # does not count
        assert [path.name for path in series.surplus(2)] == ["000001"]

    def test_a_best_one_that_is_damaged_is_told(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        for metric in (0.5, 0.9):
            path = save(series, str(metric), metric=metric, best="max")
        (path / "values.pt").write_bytes(b"8.0")
        damaged: list[CheckpointError] = []
        found = series.best(damaged=damaged)
        assert found is not None
        assert found.manifest.metric == 0.5
        assert [str(each) for each in damaged] == [
            f"{path}/values.pt was altered: its content does not match the saved hash. Load "
            "another checkpoint of the series"
        ]
        unhashed = series.best(hashes=False)
        assert unhashed is not None
        assert unhashed.path == path
        assert [finding.path.name for finding in verify_folder(path)] == ["values.pt"]
        assert verify_folder(path, hashes=False) == ()


class TestLeftOvers:
    def test_of_processes_that_are_gone_are_removed(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        save(series, "a")
        machine = own_mark().split(".")[0]
        gone = series.folder / f".tmp-000002-{machine}.{2**22 + 1}-abcdabcd"
        running = series.folder / f".tmp-000002-{own_mark()}-abcdabcd"
        elsewhere = series.folder / ".tmp-000002-00000000.1-abcdabcd"
        for folder in (gone, running, elsewhere):
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(b"half")
        save(series, "b")
        assert names_in(series) == sorted([running.name, elsewhere.name, "000001", "000002"])

    def test_of_an_earlier_process_with_the_number_of_this_one_are_removed(
        self, tmp_path: Path
    ) -> None:
        series = Series(tmp_path / "a")
        save(series, "a")
        folder = series.folder / f".tmp-000002-{own_mark()}-abcdabcd"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        save(series, "b")
        assert folder.exists()
        for path in (folder / "model.safetensors", folder):
            os.utime(path, (1e9, 1e9))  # before this process has begun
        save(series, "c")
        assert names_in(series) == ["000001", "000002", "000003"]

    def test_a_failed_save_leaves_none_and_keeps_the_series(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        save(series, "a", keep=1)

        class FullDisk(Disk):
            def sync(self, file: BinaryIO) -> None:
                raise OSError(28, "No space left on device")

        with pytest.raises(
            CheckpointError,
            match=r"\.tmp-000002-.*/model.safetensors cannot be written: No space left on device. "
            r"Free space on this disk, .* Earlier checkpoints are unchanged",
        ):
            save(series, "b", keep=1, disk=FullDisk())
        assert names_in(series) == ["000001"]

    def test_a_folder_that_vanishes_during_the_save_is_named(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        save(series, "a")

        class Vanishing(Disk):
            def sync(self, file: BinaryIO) -> None:
                if file.name.endswith("values.pt"):
                    shutil.rmtree(series.folder)

        with pytest.raises(
            CheckpointError, match=r"manifest.json cannot be written: .* Its folder was removed dur"
        ):
            save(series, "b", disk=Vanishing())
        save(series, "c")
        assert names_in(series) == ["000001"]

    def test_a_surplus_checkpoint_that_cannot_be_removed_is_a_warning(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        save(series, "a")

        class ReadOnly(Disk):
            def unlink(self, path: Path) -> None:
                raise PermissionError(13, "Permission denied")

        with pytest.warns(RuntimeWarning, match="checkpoint is saved, but .* cannot be removed: P"):
            save(series, "b", keep=1, disk=ReadOnly())
        assert [path.name for path in series.folders()] == ["000002"]

    def test_a_surplus_checkpoint_that_another_process_removes_is_no_problem(
        self, tmp_path: Path
    ) -> None:
        series = Series(tmp_path / "a")
        for text in "abc":
            save(series, text)

        class Racing(Disk):
            def rename(self, source: Path, target: Path) -> None:
                if source.name == "000001":
                    shutil.rmtree(source)
                super().rename(source, target)

        save(series, "d", keep=1, disk=Racing())
        assert names_in(series) == ["000004"]

    @pytest.mark.parametrize(
        ("number", "remedy"),
        [
            (
                errno.ENOSPC,
                r"Free space on this disk, or keep fewer checkpoints with save\(…, keep=\)",
            ),
            (errno.EDQUOT, r"Free space within your quota, or keep fewer checkpoints with save\("),
            (errno.EFBIG, r"Raise the limit on the size of files \(ulimit -f\)"),
            (errno.EACCES, "Make the folder writable for this user, or save elsewhere"),
            (errno.EROFS, "Save to a file system that is not read-only"),
            (errno.ENAMETOOLONG, "Shorten the path"),
            (errno.EIO, "Earlier checkpoints are unchanged$"),
        ],
    )
    def test_an_error_of_the_disk_says_what_to_do(
        self, number: int, remedy: str, tmp_path: Path
    ) -> None:
        class Broken(Disk):
            def write(self, file: BinaryIO, data: object) -> None:
                raise OSError(number, os.strerror(number))

        problem = rf"model.safetensors cannot be written: {os.strerror(number)}\. {remedy}"
        with pytest.raises(CheckpointError, match=problem):
            save(Series(tmp_path), "a", disk=Broken())
        assert [*tmp_path.iterdir()] == []

    def test_a_file_with_the_name_of_the_new_checkpoint_is_reported(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")

        class Overtaken(Disk):
            def rename(self, source: Path, target: Path) -> None:
                target.write_text("another process")
                super().rename(source, target)

        with pytest.raises(CheckpointError, match=r"another process has saved .*/000001 meanwhile"):
            save(series, "a", disk=Overtaken())

    def test_a_folder_without_permission_is_named(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        save(series, "a")

        class Forbidden(Disk):
            def make_folder(self, path: Path) -> None:
                raise PermissionError(13, "Permission denied")

        with pytest.raises(
            CheckpointError, match=r"cannot be created: Permission denied\. Make the folder writab"
        ):
            save(series, "b", disk=Forbidden())

    def test_a_file_system_that_cannot_sync_folders_is_no_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(descriptor: int) -> None:
            raise OSError(22, "Invalid argument")

        monkeypatch.setattr("anyrig.checkpoint.disk.os.fsync", refuse)
        Disk().sync_folder(tmp_path)
        with pytest.raises(CheckpointError, match="Invalid argument"):
            save(Series(tmp_path), "a")

    def test_another_process_with_the_same_number_is_reported(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")

        class Overtaken(Disk):
            def rename(self, source: Path, target: Path) -> None:
                shutil.copytree(source, target)
                super().rename(source, target)

        with pytest.raises(CheckpointError, match=r"another process has saved .*/000001 meanwhile"):
            save(series, "a", disk=Overtaken())
        assert names_in(series) == ["000001"]


class TestManifest:
    def test_every_altered_byte_is_found(self, tmp_path: Path) -> None:
        path = save(Series(tmp_path / "a"), "a", step=7, metric=0.5, best="max")
        manifest, text = read_manifest(path), (path / "manifest.json").read_bytes()
        for index in range(len(text)):
            altered = text[:index] + bytes([text[index] ^ 1]) + text[index + 1 :]
            (path / "manifest.json").write_bytes(altered)
            found = None
            with suppress(CheckpointError):
                found = read_manifest(path)
            assert found in (None, manifest)  # a space may have become a tab

    def test_a_cut_off_one_is_found(self, tmp_path: Path) -> None:
        path = save(Series(tmp_path / "a"), "a")
        text = (path / "manifest.json").read_bytes()
        for size in range(len(text)):
            (path / "manifest.json").write_bytes(text[:size])
            with pytest.raises(CheckpointDamagedError, match=r"manifest.json was altered or cut"):
                read_manifest(path)

    def test_a_later_format_is_refused(self, tmp_path: Path) -> None:
        path = save(Series(tmp_path / "a"), "a")
        text = (path / "manifest.json").read_text()
        (path / "manifest.json").write_text(text.replace('"format": 1', '"format": 2'))
        with pytest.raises(CheckpointError, match=r"has format 2, .* Update anyrig"):
            read_manifest(path)

    @pytest.mark.parametrize("name", ["../a", "a/b", ".hidden", "", "/etc/passwd", "manifest.json"])
    def test_files_lie_in_the_folder(self, name: str) -> None:
        with pytest.raises(ValueError, match="is not the name of a checkpoint's file"):
            Manifest(1, None, None, None, "", 1, 0.0, {}, {name: FileFact(1, "0" * 64)})
