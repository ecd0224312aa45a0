"""The files behind leases: one for each device, in a directory that all users of a machine share.

A lease is an exclusive `flock` on an open file, so the kernel ends it when the process ends,
however it ends. On Linux the holder also claims the file's name among the kernel's abstract
sockets: if the file is removed, by its owner or by what cleans temporary files, the next process
would otherwise make the file anew and lock that.

Anyone may write to the directory, so nothing in it is trusted: it must be sticky, symbolic links
are not followed, and only a plain file with one name is written to. The library filelock would
do for the lock, but not for this: its 3.x releases (read: 3.16 to 3.24) truncate the holder's file
when they lose, and unlock the parent's when a forked child drops its copy of the lock object.
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
# Through no symbolic link, and without waiting for the other end of a pipe.
_CAREFULLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_LENGTH = 256  # of the holder's text, always: one write replaces all of it
_PATIENCE_SECONDS = 1.0  # for another user to finish making a file

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        # A byte far behind the text: Windows lets nobody read what is locked.
        os.lseek(descriptor, 2**30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lease_directory() -> Path:
    """Return the directory of the leases, made if it is not there.

    ``$ANYRIG_LEASE_DIRECTORY``, else ``anyrig-leases`` in the directory for temporary files.
    Processes that do not share it, such as those of separate containers, do not see each other's
    leases.

    Raises:
        LeaseDirectoryError: it cannot be made, is not a directory, or lets anyone remove the files
            of others.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    directory = Path(named) if named else Path(tempfile.gettempdir()) / "anyrig-leases"
    try:
        try:
            # Nobody else's until it is sticky.
            directory.mkdir(_OWNER, parents=True)
        except FileExistsError:
            pass
        else:
            directory.chmod(_EVERYONE_STICKY)  # not by mkdir: the umask would take from it
        mode = directory.lstat().st_mode
    except OSError as error:
        raise _unusable(directory, str(error)) from error
    if not stat.S_ISDIR(mode):
        raise _unusable(directory, "it is no directory, or a symbolic link")
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
        LeaseDirectoryError: the file cannot be made, opened or locked.
    """
    while True:
        descriptor = _open(path)
        try:
            _lock(descriptor)
            # Somebody may have removed the file between its opening and its locking.
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return descriptor
        except FileNotFoundError:
            pass
        except (BlockingIOError, PermissionError):  # held; Windows calls it the latter
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise _unusable(path.parent, f"{path.name} cannot be locked: {error}") from error
        os.close(descriptor)


def claim_name(path: Path) -> tuple[int, ...] | None:
    """Claim the name of `path` in the kernel, where nobody can remove it.

    Returns:
        The descriptor to close when the claim ends, none where there are no abstract sockets; or
        None if another process has the name.
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
    """Write who holds the lock, for those who ask. It holds without that, on a full disk."""
    text = json.dumps({"pid": pid, "host": host[:128], "since": int(time.time())})
    with suppress(OSError):
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text.ljust(_LENGTH).encode()[:_LENGTH])


def read_holder(path: Path) -> dict[str, object]:
    """Return what the file says; nothing if the holder has not written yet.

    Anyone may have written it, and anything.
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
    """Open a lock file that is there, or make it; never both in one call.

    Where `fs.protected_regular` is set, as most distributions do, opening another user's file in
    such a directory with O_CREAT is refused, though its mode allows it.
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
                    os.fchmod(descriptor, _EVERYONE)  # the umask took from the mode above
        except FileExistsError:
            continue  # made by another process since it was not found
        except PermissionError as error:
            # Another user may be making the directory or the file, not yet open to everyone.
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
    raise _unusable(path.parent, f"{path.name} in it is no plain file of one name")


def _unusable(directory: Path, trouble: str) -> LeaseDirectoryError:
    return LeaseDirectoryError(
        f"the directory of device leases, {directory}, cannot be used: {trouble}. Remove it, make "
        f"it writable for everyone (`chmod 1777 {directory}`), or name another one that all jobs "
        f"share in {DIRECTORY_VARIABLE}"
    )
