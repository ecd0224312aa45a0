"""Files that others put in place are opened only if they are regular, and read in bounded size."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from anyrig.regular_file import (
    UnfitFileError,
    open_regular,
    opened_folder,
    path_to_open_again,
    read_regular,
)


def make_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


MADE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a pipe": ("pipe", os.mkfifo),
    "a link to a device": ("link", lambda path: path.symlink_to("/dev/zero")),
    "a link to a file": ("link", lambda path: path.symlink_to(__file__)),
    "a link to nothing": ("link", lambda path: path.symlink_to("nothing")),
    "a folder": ("folder", Path.mkdir),
    "a socket": ("socket", make_socket),
}


@pytest.mark.parametrize("what", MADE)
def test_what_is_not_a_regular_file_is_refused(what: str, tmp_path: Path) -> None:
    kind, make = MADE[what]
    make(tmp_path / "x")
    for read in (open_regular, lambda path: read_regular(path, 10)):
        with pytest.raises(UnfitFileError, match=f"it is a {kind}, not a regular file"):
            read(tmp_path / "x")


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "."])
def test_a_followed_link_leads_to_a_regular_file(target: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x").symlink_to(target)
    with pytest.raises(UnfitFileError, match=r"it is a (device|pipe|folder), not a regular file"):
        open_regular(tmp_path / "x", follow_links=True)
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "y").symlink_to("file")
    assert read_regular(tmp_path / "y", 4, follow_links=True) == b"text"


def test_a_pipe_that_replaces_the_file_after_the_check_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"text")
    seen = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda *_, **__: seen)
    with pytest.raises(UnfitFileError, match="it is a pipe"):
        open_regular(path)
    path.unlink()
    path.symlink_to(__file__)
    with pytest.raises(UnfitFileError, match="it is a link"):
        open_regular(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UnfitFileError, match="it is a folder"):
        open_regular(path)


def test_a_larger_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_regular(tmp_path / "x", 5) == b"12345"
    with pytest.raises(UnfitFileError, match="it has 5 bytes, more than 4"):
        read_regular(tmp_path / "x", 4)


def test_an_open_file_is_opened_again_after_it_was_removed(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xe9")
    path.write_bytes(b"text")
    with open_regular(path) as file:
        assert file.name == str(path)
        path.unlink()
        again = path_to_open_again(file)
        assert again.encode()
        assert Path(again).read_bytes() == b"text"


def test_a_link_is_not_opened_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").touch()
    (tmp_path / "link").symlink_to("real")
    with opened_folder(tmp_path / "real") as folder:
        assert os.listdir(folder) == ["x"]  # noqa: PTH208
    with (
        pytest.raises(OSError, match=r"Not a directory|Too many levels"),
        opened_folder(tmp_path / "link"),
    ):
        pass
