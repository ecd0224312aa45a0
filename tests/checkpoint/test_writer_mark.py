"""Whether the process that writes a temporary folder has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from anyrig.checkpoint.writer_mark import is_abandoned, own_mark

HOUR = 3600.0


def make_folder(tmp_path: Path, mark: str, hours_ago: float, newer_hours_ago: float = 0.0) -> Path:
    """Make a folder with one file; the file may be newer than the folder."""
    folder = tmp_path / f".tmp-000001-{mark}-abcdabcd"
    folder.mkdir()
    file = folder / "model.safetensors"
    file.touch()
    for path, hours in ((file, newer_hours_ago or hours_ago), (folder, hours_ago)):
        seconds = time.time() - hours * HOUR
        os.utime(path, (seconds, seconds))
    return folder


@pytest.mark.parametrize("mark", ["00000000.1", "without a mark"])
@pytest.mark.parametrize(
    ("hours_ago", "newer_hours_ago", "expected"),
    [(23, 0, False), (25, 0, True), (25, 23, False), (0, 0, False)],
)
def test_folders_of_other_machines_are_abandoned_after_a_day_without_a_write(
    mark: str, hours_ago: float, newer_hours_ago: float, expected: bool, tmp_path: Path
) -> None:
    assert is_abandoned(make_folder(tmp_path, mark, hours_ago, newer_hours_ago)) == expected


def test_a_process_of_this_machine_that_has_ended_has_abandoned_its_folder(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    mark = f"{own_mark().split('.')[0]}.{process.pid}"
    folder = make_folder(tmp_path, mark, 0)
    assert not is_abandoned(folder)
    process.communicate(b"\n")
    assert is_abandoned(folder)


def test_a_later_process_with_the_same_number_is_another_one(tmp_path: Path) -> None:
    begun = psutil.Process().create_time()
    for seconds, expected in ((-60.0, True), (60.0, False)):
        folder = make_folder(tmp_path, own_mark(), 0)
        for path in (*folder.iterdir(), folder):
            os.utime(path, (begun + seconds, begun + seconds))
        assert is_abandoned(folder) == expected
        folder.rename(tmp_path / str(seconds))


def test_a_process_that_cannot_be_seen_may_still_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> None:
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(psutil, "Process", refuse)
    assert not is_abandoned(make_folder(tmp_path, own_mark(), 1000))


def test_a_checkpoint_that_is_being_removed_belongs_to_nobody(tmp_path: Path) -> None:
    assert is_abandoned(make_folder(tmp_path, "surplus", 0))
    assert not is_abandoned(make_folder(tmp_path, "my-surplus-notes", 0))


def test_a_link_is_no_folder_of_a_save(tmp_path: Path) -> None:
    for mark in ("surplus", "00000000.1"):
        folder = make_folder(tmp_path, mark, 25)
        folder.rename(tmp_path / f"elsewhere {mark}")
        folder.symlink_to(tmp_path / f"elsewhere {mark}")
        assert not is_abandoned(folder)
