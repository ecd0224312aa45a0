"""Find the files that an index or a manifest names, only inside its own folder."""

from __future__ import annotations

import stat
from pathlib import Path

from ...errors import CheckpointDamagedError, CheckpointError, UnsafeFileError


def check_regular(path: Path) -> None:
    """Raise unless `path` is a regular file: reading a pipe or a device could wait forever.

    Raises:
        FileNotFoundError: nothing is there.
        CheckpointError: the path is not a regular file.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{path} is not a regular file; give the file of a checkpoint")


def find_inside(folder: Path, name: str, *, named_by: str) -> Path:
    """Return the file of this name in `folder`.

    Hugging Face's cache is made of links from ``snapshots/<revision>`` to ``blobs``; these links
    are followed. Any other link that leads out of the folder is refused.

    Args:
        folder: where the file must be.
        name: a plain file name from an untrusted source.
        named_by: the file that gives the name, for messages.

    Raises:
        UnsafeFileError: the name is a path, or a link leads out of the folder.
        CheckpointDamagedError: there is no such file.
    """
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise UnsafeFileError(
            f"{named_by} names the file {name!r}, but only plain names of files next to it are "
            "read. Nothing was read; check where this checkpoint comes from"
        )
    path = folder / name
    if path.is_symlink():
        home = folder.resolve()
        target = path.resolve()
        is_blob = home.parent.name == "snapshots" and target.parent == home.parent.parent / "blobs"
        if target.parent != home and not is_blob:
            raise UnsafeFileError(
                f"{path} is a link to {target}, outside its folder. Nothing was read; replace "
                "the link with the file if you trust it"
            )
    if not path.exists():
        raise CheckpointDamagedError(
            f"{named_by} names the file {name!r}, but {folder} has no such file. "
            "Copy or download the missing file"
        )
    check_regular(path)
    return path
