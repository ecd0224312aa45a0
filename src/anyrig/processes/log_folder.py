"""The temporary folder in which the output of a group's ranks lies.

It is removed when the group ends well. The folders of the last few groups that failed stay, for
their messages name them; a file in it tells such a folder from that of a group that still runs.
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
    """Return a new folder that only this user can read."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def keep_log_folder(folder: Path) -> None:
    """Keep the folder of a group that failed, and remove those of all but the last few."""
    with suppress(OSError):  # the disk may be full, which may be why the group failed
        (folder / _MARK).touch()
    others = sorted(
        (age, other) for age, other in _failed_folders(folder.parent) if other != folder
    )
    for _, old in others[: -(MOST_KEPT - 1)]:  # `folder` is the last that stays
        shutil.rmtree(old, ignore_errors=True)


def _failed_folders(parent: Path) -> Iterator[tuple[int, Path]]:
    """Yield this user's folders of groups that failed, each with the time of the failure."""
    with suppress(OSError):
        for path in parent.iterdir():
            with suppress(OSError):
                if not _NAME.fullmatch(path.name) or not stat.S_ISDIR(_own(path).st_mode):
                    continue
                mark = _own(path / _MARK)
                if stat.S_ISREG(mark.st_mode):
                    yield mark.st_mtime_ns, path


def _own(path: Path) -> os.stat_result:
    """Return what a path is, without following a link.

    Raises:
        PermissionError: it is another user's.
    """
    found = path.lstat()
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        raise PermissionError(f"{path} is another user's")
    return found
