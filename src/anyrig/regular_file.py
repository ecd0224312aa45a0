"""Open files and folders that others may have put in place.

Opening a pipe waits for a writer, reading a device may never end, and a link may lead to any file
of the user. These functions open regular files and real folders only, and read bounded sizes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

# Flags that Windows does not have are 0 there, as O_BINARY is elsewhere.
_READ = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe that replaces the file meanwhile is not waited for
)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0)
_KINDS = (
    (stat.S_ISLNK, "link"),
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)
# The folder in which a process finds its own open files by their numbers.
_OPEN_FILES = ("/proc/self/fd", "/dev/fd")

HAS_FOLDER_DESCRIPTORS = bool(_NO_FOLLOW) and {os.open, os.unlink} <= os.supports_dir_fd


class UnfitFileError(OSError):
    """A path is not a regular file, or the file is larger than its content may be.

    ``strerror`` says which, such as ``"it is a pipe, not a regular file"``.
    """

    def __init__(self, path: str | os.PathLike[str], problem: str) -> None:
        super().__init__(errno.EINVAL, problem, os.fspath(path))


def open_regular(path: str | os.PathLike[str], *, follow_links: bool = False) -> FileIO:
    """Open a regular file for reading, unbuffered.

    Args:
        path: the file. Links among its folders are followed.
        follow_links: also follow the path itself if it is a link, to a regular file.

    Raises:
        UnfitFileError: the path is not a regular file. Nothing was opened for reading.
        OSError: there is no such file, or it cannot be opened.
    """
    _require_regular(path, Path(path).stat(follow_symlinks=follow_links))
    flags = _READ | (0 if follow_links else _NO_FOLLOW)
    try:
        # The file owns its descriptor from the beginning, whenever an interrupt comes.
        file = FileIO(os.fspath(path), "rb", opener=lambda name, _: os.open(name, flags))
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_links:  # it became a link after the check
            raise UnfitFileError(path, "it is a link, not a regular file") from None
        if error.errno == errno.EISDIR:
            raise UnfitFileError(path, "it is a folder, not a regular file") from None
        raise
    try:
        _require_regular(path, os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file


def read_regular(
    path: str | os.PathLike[str], most_bytes: int, *, follow_links: bool = False
) -> bytes:
    """Return the content of a regular file of at most `most_bytes` bytes.

    Raises:
        UnfitFileError: the path is not a regular file, or the file is larger.
        OSError: there is no such file, or it cannot be read.
    """
    with open_regular(path, follow_links=follow_links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise UnfitFileError(path, f"it has {size} bytes, more than {most_bytes}")
        parts: list[bytes] = []
        left = most_bytes
        while left and (part := file.read(min(left, max(size, 1 << 16)))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def path_to_open_again(file: FileIO) -> str:
    """Return a path under which a library opens the same file as `file`, which must stay open.

    The path is valid UTF-8, and leads to the same file after the file was renamed or removed. Where
    the system does not list the open files of a process, it is the file's own path.
    """
    for folder in _OPEN_FILES:
        path = f"{folder}/{file.fileno()}"
        if Path(path).exists():
            return path
    return str(file.name)


@contextmanager
def opened_folder(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a folder that is not a link, for functions that take ``dir_fd``, while the block runs.

    Raises:
        OSError: the path is not a folder, or is a link to one.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | _FOLDER | _NO_FOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _require_regular(path: str | os.PathLike[str], found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(found.st_mode)), "special file")
        raise UnfitFileError(path, f"it is a {kind}, not a regular file")
