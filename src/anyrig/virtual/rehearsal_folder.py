"""The folder through which the processes of a rehearsal share its GPUs.

::

    /tmp/anyrig-rehearsal-1000-5f0c…/     user id and a random name
        GPUs                             memory held by each process: csrc/memory/gpu_ledger.h
        leases/                           leases of `anyrig.choose` and `anyrig.devices`

The first process that imports torch creates the folder, and the last process to end removes it. If
that process is killed, the folder stays until the user's next rehearsal on this machine starts.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "anyrig-rehearsal"


def new_rehearsal_folder() -> Path:
    """Return the path of a new rehearsal's folder, and remove the folders of killed rehearsals.

    A process that already shares GPUs must not call this function: POSIX drops all of a process's
    locks on a file when the process closes any descriptor of the file.
    """
    place = Path(tempfile.gettempdir())
    prefix = f"{_PREFIX}-{os.getuid()}-"
    for folder in place.glob(f"{prefix}*"):
        remove_unless_used(folder)
    return place / f"{prefix}{os.urandom(8).hex()}"


def remove_unless_used(folder: Path) -> None:
    """Remove the folder of a rehearsal if the folder exists and no process uses it.

    A process that shares the GPUs of `folder` calls this function only as the last thing that it
    does (`new_rehearsal_folder`).
    """
    with suppress(OSError):
        _remove(folder)


def _remove(folder: Path) -> None:
    if not _is_ours(folder):
        return
    try:
        file = os.open(folder / "gpus", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        folder.rmdir()  # the first process was killed before it created the file
        return
    try:
        # Each process of a rehearsal locks one byte, so locking the whole file succeeds only if
        # no process is left.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder / "leases", ignore_errors=True)
        # Delete the two names in this order, not the tree: a process that starts now may create a
        # new file in the folder, and `rmdir` then fails.
        (folder / "gpus").unlink()
        folder.rmdir()
    finally:
        os.close(file)


def _is_ours(folder: Path) -> bool:
    """Return whether `folder` is a real folder that only this user owns and can write to.

    Any user can create this name in the folder for temporary files. Without the check, anyrig
    would delete files inside another user's folder or behind a link.
    """
    found = folder.lstat()
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others
