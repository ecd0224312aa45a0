"""Leases: one process holds a device, and others that ask choose another.

Two jobs that start together both see an idle card, because neither has allocated yet; the lease
tells them apart. It binds only those who ask for it, and ends with the process, however it ends.
It belongs to the process that took it: a forked child has no part in it and does not prolong it.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ..errors import NoDeviceError
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

# What is believed of a file that anyone may have written.
_HOST = re.compile(r"[0-9A-Za-z_.-]{1,128}")
_MOST_PID = 2**22  # Linux has no higher one


class Lease(Held):
    """A device that this process holds. Also a context manager, which releases it.

    Attributes:
        uuid: of the device, as NVML writes it.
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
        """Give the device back. One that was acquired twice must be released twice."""
        with _lock:
            self._count = max(self._count - 1, 0)
            if self._count == 0:
                self._close()

    def __repr__(self) -> str:
        return f"<Lease of {self.uuid}, {'held' if self.held else 'released'}>"

    def _close(self) -> None:
        """Close the files, which unlocks them unless a parent has them open too: never `LOCK_UN`,
        which in a forked child would unlock the parent's.
        """
        descriptors, self._descriptors = self._descriptors, ()
        if descriptors:
            _held.pop(self.uuid, None)
        for descriptor in descriptors:
            os.close(descriptor)


@dataclass(frozen=True)
class LeaseHolder:
    """Another process holds the device.

    Attributes:
        pid: of the process, in its own namespace; None if it has not said yet.
        host: its host or container.
        since: when it took the lease.
    """

    pid: int | None
    host: str | None
    since: datetime | None

    def __str__(self) -> str:
        if self.pid is None:
            return "a process that has not said which"
        place = "" if self.host in (None, socket.gethostname()) else f" on {self.host}"
        since = "" if self.since is None else f" since {self.since.astimezone():%Y-%m-%d %H:%M:%S}"
        return f"process {self.pid}{place}{since}"


_lock = threading.Lock()  # over both of these, and while a process forks
_held: dict[str, Lease] = {}
_choosing: list[int] = []
_this_thread = threading.local()


def acquire_lease(uuid: str) -> Lease | LeaseHolder:
    """Take the device `uuid` for this process, or say at once who holds it.

    A device that this process holds already is the same lease, counted.

    Raises:
        LeaseDirectoryError: the leases cannot be kept.
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


def acquire_first(uuids: Iterable[str], count: int = 1) -> list[Lease]:
    """Take the first `count` devices of `uuids` that can be had: all of them, or none.

    Raises:
        NoDeviceError: fewer can be had; the message says who holds the others.
        LeaseDirectoryError: the leases cannot be kept.
    """
    leases: list[Lease] = []
    holders: list[str] = []
    try:
        with one_chooser_at_a_time():
            for uuid in uuids:
                if len(leases) == count:
                    break
                answer = acquire_lease(uuid)
                if isinstance(answer, Lease):
                    leases.append(answer)
                else:
                    holders.append(f"{uuid} is held by {answer}")
        if len(leases) < count:
            raise NoDeviceError(
                f"{count} devices were asked for and {len(leases)} can be had: "
                f"{'; '.join(holders) or 'there are no more'}. Wait for them, or ask for fewer"
            )
    except BaseException:
        for lease in leases:
            lease.release()
        raise
    return leases


@contextmanager
def one_chooser_at_a_time() -> Iterator[None]:
    """Keep other processes from choosing meanwhile.

    Two that each want two of the same two devices could otherwise take one each, and both fail.
    One that is stopped in the middle delays the others by five seconds, and no more. May be
    nested.
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
    """Close, in a forked child, its copies of the parent's files: the leases are the parent's."""
    for lease in list(_held.values()):
        lease._close()
    while _choosing:
        os.close(_choosing.pop())
    _lock.release()


# No thread is between opening a file and noting it when the process forks. (Not on Windows.)
_register_at_fork: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register_at_fork is not None:
    _register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_leases
    )
