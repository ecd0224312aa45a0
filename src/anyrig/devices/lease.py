"""Leases: while one process holds a device, other processes that ask choose another device.

Two jobs that start at the same time both see an idle GPU, because neither has allocated memory yet.
A lease keeps the second job away. It binds only processes that ask for it, and ends with the
process, even by a signal. A forked child does not hold its parent's leases.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from .held import Held
from .identity import normalise_uuid
from .lease_file import (
    claim_name,
    lease_directory,
    lock_path,
    open_locked,
    read_holder,
    write_holder,
)

_PATIENCE_SECONDS = 5.0  # for another process that is choosing

# Limits for the contents of a file that anyone may have written.
_HOST = re.compile(r"[0-9A-Za-z_.-]{1,128}")
_MOST_PID = 2**22  # the highest on Linux


class Lease(Held):
    """A device that this process holds; as a context manager, it releases the device at the end.

    Attributes:
        uuid: the UUID of the device, as NVML writes it.
    """

    def __init__(self, uuid: str, descriptors: tuple[int, ...]) -> None:
        self.uuid = uuid
        self._descriptors = descriptors
        self._count = 1

    @property
    def held(self) -> bool:
        """Whether this process still holds the device."""
        return bool(self._descriptors)

    def release(self) -> None:
        """Release the device. A device that was acquired twice must be released twice."""
        with _lock:
            self._count = max(self._count - 1, 0)
            if self._count == 0:
                self._close()

    def __repr__(self) -> str:
        return f"<Lease of {self.uuid}, {'held' if self.held else 'released'}>"

    def _close(self) -> None:
        """Close the files. This unlocks them, unless the parent of a forked child has them open.

        `LOCK_UN` in a forked child would unlock the parent's files.
        """
        descriptors, self._descriptors = self._descriptors, ()
        if descriptors:
            _held.pop(self.uuid, None)
        for descriptor in descriptors:
            os.close(descriptor)


@dataclass(frozen=True)
class LeaseHolder:
    """The process that holds a device.

    Attributes:
        pid: the process id in the process's own namespace; None if it is not written yet.
        host: the process's host or container.
        since: when the process took the lease.
    """

    pid: int | None
    host: str | None
    since: datetime | None

    def __str__(self) -> str:
        if self.pid is None:
            return "an unknown process"
        place = "" if self.host in (None, socket.gethostname()) else f" on {self.host}"
        since = "" if self.since is None else f" since {self.since.astimezone():%Y-%m-%d %H:%M:%S}"
        return f"process {self.pid}{place}{since}"


_lock = threading.Lock()  # guards the two tables, and is held during a fork
_held: dict[str, Lease] = {}
_choosing: list[int] = []
_this_thread = threading.local()


def acquire_lease(uuid: str) -> Lease | LeaseHolder:
    """Take the device `uuid` for this process, or return its holder at once.

    If this process already holds the device, return the same lease and count it once more.

    Raises:
        LeaseDirectoryError: the lease directory cannot be used.
    """
    uuid = normalise_uuid(uuid)
    with _lock:
        if uuid in _held:
            _held[uuid]._count += 1
            return _held[uuid]
        path = lock_path(uuid)
        claim = claim_name(path)
        if claim is None:
            return _holder(path)
        locked = None
        try:
            locked = open_locked(path)
        finally:
            if locked is None:
                for descriptor in claim:
                    os.close(descriptor)
        if locked is None:
            return _holder(path)
        lease = _held[uuid] = Lease(uuid, (*claim, locked))
        write_holder(locked, os.getpid(), socket.gethostname())
        return lease


@contextmanager
def one_chooser_at_a_time() -> Iterator[None]:
    """Keep other processes from choosing devices within the block.

    Otherwise, two processes that each need the same two devices could take one each, and both
    fail. A process that is stopped inside the block delays the others by five seconds at most.
    Blocks may be nested.
    """
    if getattr(_this_thread, "chooses", False):
        yield
        return
    path = lease_directory() / "choosing.lock"
    deadline = time.monotonic() + _PATIENCE_SECONDS
    descriptor = _open_choosing(path)
    while descriptor is None and time.monotonic() < deadline:
        time.sleep(0.005)
        descriptor = _open_choosing(path)
    _this_thread.chooses = True
    try:
        yield
    finally:
        _this_thread.chooses = False
        with _lock:
            if descriptor is not None and descriptor in _choosing:  # not in a forked child
                _choosing.remove(descriptor)
                os.close(descriptor)


def _open_choosing(path: Path) -> int | None:
    with _lock:
        descriptor = open_locked(path)
        if descriptor is not None:
            _choosing.append(descriptor)
        return descriptor


def _holder(path: Path) -> LeaseHolder:
    found = read_holder(path)
    pid, host, since = (found.get(key) for key in ("pid", "host", "since"))
    return LeaseHolder(
        pid=pid if type(pid) is int and 0 < pid <= _MOST_PID else None,
        host=host if isinstance(host, str) and _HOST.fullmatch(host) else None,
        since=datetime.fromtimestamp(since, timezone.utc)
        if type(since) is int and 0 <= since <= time.time() + 1
        else None,
    )


def _forget_leases() -> None:
    """In a forked child, close the copies of the parent's files: the leases are the parent's."""
    for lease in list(_held.values()):
        lease._close()
    while _choosing:
        os.close(_choosing.pop())
    _lock.release()


# Hold the lock during a fork, so that every open file is recorded. (Windows has no fork.)
_register_at_fork: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register_at_fork is not None:
    _register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_leases
    )
