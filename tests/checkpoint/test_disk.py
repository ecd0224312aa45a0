"""The file operations of a commit: existing files stay, and nothing is half-written."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from anyrig.checkpoint.disk import Disk
from anyrig.checkpoint.undo import Undo


class ShortWrites:
    """A file that takes three bytes at a time, as a file without a buffer may."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, data: memoryview) -> int:
        self.content += bytes(data[:3])
        return min(3, len(data))


def test_all_bytes_are_written() -> None:
    file: Any = ShortWrites()
    Disk().write(file, b"seven by")
    Disk().write(file, b"")
    assert file.content == b"seven by"


def test_what_exists_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileExistsError):
        Disk().create(tmp_path / "file")
    with pytest.raises(FileExistsError):
        Disk().make_folder(tmp_path / "folder")
    with pytest.raises(FileNotFoundError):
        Disk().make_folder(tmp_path / "none" / "folder")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(OSError, match="not empty"):
        Disk().rename(tmp_path / "folder", tmp_path / "other")
    with pytest.raises(OSError, match="not empty"):
        Disk().remove_folder(tmp_path / "other")
    assert (tmp_path / "file").read_text() == "old"
    assert Disk().names_in(tmp_path / "other") == ["file"]


def test_a_link_is_removed_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    Disk().unlink(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("number", "is_error"),
    [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True), (errno.ENOSPC, True)],
)
def test_names_that_cannot_be_synced_are_an_error_unless_the_file_system_syncs_none(
    number: int, is_error: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr("anyrig.checkpoint.disk.os.fsync", refuse)
    if is_error:
        with pytest.raises(OSError, match="no"):
            Disk().sync_folder(tmp_path)
    else:
        Disk().sync_folder(tmp_path)


def test_the_latest_change_is_undone_first_and_once() -> None:
    undo, done = Undo(), []
    for number in range(3):
        undo.add(lambda number=number: done.append(number))
    undo.add(lambda: 1 / 0)
    undo.run()
    undo.run()
    assert done == [2, 1, 0]
