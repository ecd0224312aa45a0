"""The file operations of a commit, in one object, so that a test can record and replay them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

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
    """

    def make_folder(self, path: Path) -> None:
        """Create a folder; its parent must exist."""
        path.mkdir()

    def create(self, path: Path) -> BinaryIO:
        """Create an empty file, which must not exist, and open the file for writing."""
        return path.open("xb", buffering=0)

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
        descriptor = os.open(path, os.O_RDONLY)
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
        """Remove a file."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()
