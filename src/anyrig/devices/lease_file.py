"""The files of leases: one per device, in a directory that all users of a machine share.

A lease is an exclusive `flock` on an open file, so the kernel ends it with the process. On Linux
the holder also binds an abstract socket of the file's name: otherwise, if its owner or a cleaner of
temporary files removed the file, the next process could create and lock a new one.

Anyone may write to the directory, so its contents are not trusted: it must be sticky, symbolic
links are not followed, and only a regular file with a single hard link is written to. The library
filelock does not do this: its 3.x releases (checked: 3.16 to 3.24) truncate the holder's file when
they fail to lock it, and unlock the parent's file when a forked child deletes its copy of the lock.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ..errors import LeaseDirectoryError

DIRECTORY_VARIABLE = "ANYRIG_LEASE_DIRECTORY"

_EVERYONE = 0o666
_EVERYONE_STICKY = 0o1777
_OWNER = 0o700
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# Do not follow symbolic links, and do not wait for the other end of a pipe.
_CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_LENGTH = 256  # the fixed length of the holder's text: one write replaces all of it
_PATIENCE_SECONDS = 1.0  # for another user to finish creating a file

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        # Lock a byte far beyond the contents: on Windows, locked bytes cannot be read.
        os.lseek(descriptor, 2**30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lease_directory() -> Path:
    """Return the directory of the leases, and create it if necessary.

    The directory is ``$ANYRIG_LEASE_DIRECTORY``, else ``anyrig-leases`` in the directory for
    temporary files. Processes with different directories, such as separate containers, do not see
    each other's leases.

    Raises:
        LeaseDirectoryError: the directory cannot be created, is not a directory, or lets users
            remove the files of others.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    directory = Path(named) if named else Path(tempfile.gettempdir()) / "anyrig-leases"
    try:
        try:
            # Accessible only to this user until it is sticky.
            directory.mkdir(_OWNER, parents=True)
        except FileExistsError:
            pass
        else:
            directory.chmod(_EVERYONE_STICKY)  # not by mkdir, which applies the umask
        mode = directory.lstat().st_mode
    except OSError as error:
        raise _unusable(directory, str(error)) from error
    if not stat.S_ISDIR(mode):
        raise _unusable(directory, "it is not a directory, or it is a symbolic link")
    if os.name == "posix" and mode & _WRITABLE_BY_OTHERS and not mode & stat.S_ISVTX:
        raise _unusable(
            directory,
            f"its mode is {stat.S_IMODE(mode):04o}, so others can remove the leases in it",
        )
    return directory


def lock_path(uuid: str) -> Path:
    """Return the file for the device `uuid`: a MIG instance's name may contain slashes."""
    return lease_directory() / (re.sub(r"[^A-Za-z0-9.-]", "_", uuid) + ".lock")


def open_locked(path: Path) -> int | None:
    """Return a descriptor of `path` that holds its lock, or None if another process does.

    Raises:
        LeaseDirectoryError: the file cannot be created, opened or locked.
    """
    while True:
        descriptor = _open(path)
        try:
            _lock(descriptor)
            # Another process may have removed the file after it was opened.
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return descriptor
        except FileNotFoundError:
            pass
        except (BlockingIOError, PermissionError):  # held; PermissionError on Windows
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise _unusable(path.parent, f"{path.name} cannot be locked: {error}") from error
        os.close(descriptor)


def claim_name(path: Path) -> tuple[int, ...] | None:
    """Bind an abstract socket named after `path`, which no user can remove.

    Returns:
        The descriptors to close at the end of the lease, empty where there are no abstract sockets;
        or None if another process has the name.
    """
    if sys.platform != "linux":
        return ()
    name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        try:
            claim.bind(f"\0anyrig-lease-{name}")
        except OSError as error:
            return None if error.errno == errno.EADDRINUSE else ()
        return (claim.detach(),)


def write_holder(descriptor: int, pid: int, host: str) -> None:
    """Write the holder to the file. On a full disk, the lease is valid without it."""
    text = json.dumps({"pid": pid, "host": host[:128], "since": int(time.time())})
    with suppress(OSError):
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text.ljust(_LENGTH).encode()[:_LENGTH])


def read_holder(path: Path) -> dict[str, object]:
    """Return what the file says about the holder; empty if the holder has not written yet.

    The result is not trusted: any user may have written the file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _CAREFULLY)
        try:
            plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
            text = os.read(descriptor, _LENGTH) if plain else b""
        finally:
            os.close(descriptor)
        found = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _open(path: Path) -> int:
    """Open an existing lock file, or create it, in separate calls.

    With `fs.protected_regular`, which most distributions set, opening another user's file in such
    a directory with O_CREAT fails, although the mode allows it.
    """
    flags = os.O_RDWR | _CAREFULLY
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            try:
                descriptor = os.open(path, flags)
            except FileNotFoundError:
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _EVERYONE)
                if hasattr(os, "fchmod"):  # not on Windows
                    os.fchmod(descriptor, _EVERYONE)  # the umask restricted the mode above
        except FileExistsError:
            continue  # another process has created it meanwhile
        except PermissionError as error:
            # Another user may be creating the directory or the file, and has not opened it to all.
            if time.monotonic() > deadline:
                raise _unusable(path.parent, str(error)) from error
            time.sleep(0.01)
        except OSError as error:
            raise _unusable(path.parent, str(error)) from error
        else:
            return _checked(descriptor, path)


def _checked(descriptor: int, path: Path) -> int:
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise _unusable(path.parent, f"{path.name} in it is not a regular file with one hard link")


def _unusable(directory: Path, trouble: str) -> LeaseDirectoryError:
    return LeaseDirectoryError(
        f"the directory of device leases, {directory}, cannot be used: {trouble}. Remove it, make "
        f"it writable for everyone (`chmod 1777 {directory}`), or name another one that all jobs "
        f"share in {DIRECTORY_VARIABLE}"
    )
