"""A file gets its name when it is whole, with the permissions of any new file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from anyrig.checkpoint.atomic_file import open_atomically
from anyrig.errors import CheckpointError


def write(path: Path, *, overwrite: bool = False, meanwhile: str = "") -> None:
    with open_atomically(path, overwrite=overwrite) as file:
        file.write(b"new")
        assert not path.exists() or path.read_bytes() == b"old"
        if meanwhile:
            path.write_text(meanwhile)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("mask", "mode"), [(0o027, 0o640), (0o077, 0o600), (0, 0o666)])
def test_the_mode_is_that_of_any_new_file(
    overwrite: bool, mask: int, mode: int, tmp_path: Path
) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path / "a", overwrite=overwrite)
        assert os.umask(mask) == mask  # as before
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_a_file_system_without_links_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    write(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"new"
    with pytest.raises(CheckpointError, match="b exists already, and was not changed"):
        write(tmp_path / "b", meanwhile="theirs")
    assert (tmp_path / "b").read_text() == "theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_an_existing_file_is_unchanged_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    write(path, overwrite=True)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a\0b", "null byte"),
        ("n" * 256, "File name too long"),
        ("", "is a folder; name a file"),
        ("file/a", "file is not a folder; create it first"),
    ],
)
def test_a_name_that_cannot_be_written_is_named(name: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=problem):
        write(tmp_path / name, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_error_while_writing_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def fail() -> None:
        with open_atomically(tmp_path / "a", overwrite=True):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match=r"a' cannot be written: No space left on device. An"):
        fail()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]
