"""The file operations of a commit, in one object, so that a test can record and replay them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from ..regular_file import HAS_FOLDER_DESCRIPTORS, opened_folder

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The errors of file systems that cannot sync a folder, such as some network file systems, which
# write names by themselves.
_NO_SYNC_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP)


class Disk:
    """Changes files and folders. Every change that a save makes goes through these methods.

    A change survives a crash of the machine once `sync` (content of a file) or `sync_folder` (names
    in a folder) has returned. Before that, a file system may lose changes, or keep a later change
    and lose an earlier one.

    Files are created and removed by their names in a folder that is not a link, and links in the
    folder are not followed: no change reaches a file outside the folder.
    """

    def make_folder(self, path: Path) -> None:
        """Create a folder; its parent must exist."""
        path.mkdir()

    def create(self, path: Path) -> BinaryIO:
        """Create an empty file, which must not exist, and open the file for writing."""
        with _folder_of(path) as place:

            def create(_: str, flags: int) -> int:
                return os.open(place.name, flags, 0o666, dir_fd=place.folder)

            return open(path, "xb", buffering=0, opener=create)

    def write(self, file: BinaryIO, data: Buffer) -> None:
        """Append all bytes of `data` to an open file."""
        left = memoryview(data).cast("B")
        while left:
            left = left[file.write(left) :]

    def sync(self, file: BinaryIO) -> None:
        """Return when the content of an open file is on the disk."""
        os.fsync(file.fileno())

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the disk."""
        if os.name == "nt":  # Windows cannot open a folder, and writes names by itself
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_SYNC_OF_FOLDERS:
                raise
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a folder. A non-empty folder under the new name is an error."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Remove a file; of a link, the link."""
        with _folder_of(path) as place:
            os.unlink(place.name, dir_fd=place.folder)

    def names_in(self, path: Path) -> list[str]:
        """Return the names in a folder; a link to a folder raises an error."""
        with _folder_of(path / "_") as place:
            return os.listdir(path if place.folder is None else place.folder)  # noqa: PTH208

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()


class _Place(NamedTuple):
    name: str
    folder: int | None


@contextmanager
def _folder_of(path: Path) -> Iterator[_Place]:
    """Open the folder of a path, which must not be a link, while the block runs."""
    if HAS_FOLDER_DESCRIPTORS:
        with opened_folder(path.parent) as folder:
            yield _Place(path.name, folder)
    elif path.parent.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "it is a link to a folder", str(path.parent))
    else:
        yield _Place(str(path), None)
