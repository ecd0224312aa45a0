"""A commit leaves the old series or the new one, wherever it stops."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from crashing_disk import RecordingDisk, crashes_of, write_tree
from text_checkpoints import UnsyncedDisk, content_of, names_in, save
from torch import nn

import anyrig
from anyrig.checkpoint.disk import Disk
from anyrig.checkpoint.series import Series
from anyrig.checkpoint.writer_mark import own_mark
from anyrig.errors import CheckpointError


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
