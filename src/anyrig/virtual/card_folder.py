"""The folder through which the processes of a rehearsal share its cards.

::

    /tmp/anyrig-rehearsal-1000-5f0c…/     the user, and a name that nobody else has
        cards                             who holds how many bytes: csrc/memory/card_ledger.h
        leases/                           of `anyrig.choose` and `anyrig.devices.acquire_lease`

A process makes it when its torch finds the rig, if no other has, and the last one to end removes
it. Where that one was killed it stays, until the next rehearsal on this machine starts.
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


def new_card_folder() -> Path:
    """Return a path for a new rehearsal, and remove the folders of those that were killed.

    Not for a process that shares cards already: to look at their file would end its own locks.
    """
    place = Path(tempfile.gettempdir())
    prefix = f"{_PREFIX}-{os.getuid()}-"
    for folder in place.glob(f"{prefix}*"):
        remove_unless_used(folder)
    return place / f"{prefix}{os.urandom(8).hex()}"


def remove_unless_used(folder: Path) -> None:
    """Remove the folder of a rehearsal, if it is there and none of its processes lives.

    Not for a process that shares its cards either.
    """
    with suppress(OSError):
        _remove(folder)


def _remove(folder: Path) -> None:
    if not _is_ours(folder):
        return
    try:
        file = os.open(folder / "cards", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        folder.rmdir()  # its first process was killed before it made the file
        return
    try:
        # Each process of a rehearsal holds a lock on one byte. Who gets all is alone.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder / "leases", ignore_errors=True)
        # By name and in this order: a process that comes now makes a file anew in the same folder.
        (folder / "cards").unlink()
        folder.rmdir()
    finally:
        os.close(file)


def _is_ours(folder: Path) -> bool:
    """Return whether a folder, no link to one, is this user's and nobody else can write to it.

    Anyone may put something under this name into the place for temporary files, and what lies in
    it would be removed as if it were a rehearsal's.
    """
    found = folder.lstat()
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not others
