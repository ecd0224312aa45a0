"""The temporary folder with the output of a group's ranks.

The folder is removed when the group succeeds. The folders of the last few failed groups are kept,
because error messages name them. A file marks these folders.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MOST_KEPT = 5

_PREFIX = "anyrig-run-"
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_MARK = "failed"


def new_log_folder() -> Path:
    """Create a folder that only this user can read."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def keep_log_folder(folder: Path) -> None:
    """Mark the folder of a failed group, and remove all but the last `MOST_KEPT` such folders."""
    with suppress(OSError):  # the disk may be full
        (folder / _MARK).touch()
    others = sorted(
        (age, other) for age, other in _failed_folders(folder.parent) if other != folder
    )
    for _, old in others[: -(MOST_KEPT - 1)]:  # in addition to `folder`
        shutil.rmtree(old, ignore_errors=True)


def _failed_folders(parent: Path) -> Iterator[tuple[int, Path]]:
    """Yield (time of failure, folder) for this user's marked folders."""
    with suppress(OSError):
        for path in parent.iterdir():
            with suppress(OSError):
                if not _NAME.fullmatch(path.name) or not stat.S_ISDIR(_status_if_own(path).st_mode):
                    continue
                mark = _status_if_own(path / _MARK)
                if stat.S_ISREG(mark.st_mode):
                    yield mark.st_mtime_ns, path


def _status_if_own(path: Path) -> os.stat_result:
    """Return the status of a path, without following a link.

    Raises:
        PermissionError: another user owns the path.
    """
    found = path.lstat()
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    return found
