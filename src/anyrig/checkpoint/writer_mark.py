"""Mark a temporary folder with the process that writes it, in the folder's name.

``.tmp-000007-1f0c9a2b.4711-5e6d7c8b`` belongs to process 4711 of the machine ``1f0c9a2b``. Process
ids are unique only within one boot and one PID namespace, so the machine's part is a hash of both.
``.tmp-000007-surplus-5e6d7c8b`` belongs to nobody: it is a checkpoint that is being removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil

SURPLUS = "-surplus-"
_SURPLUS_NAME = re.compile(rf"\.tmp-\d+{SURPLUS}[0-9a-f]{{8}}")
_MARK = re.compile(r"-([0-9a-f]{8})\.(\d+)-")
# Whether a process of another machine still writes is unknown; a running save writes all the time.
_IDLE_SECONDS = 24 * 3600.0
_CLOCK_SLACK_SECONDS = 2.0


def own_mark() -> str:
    """Return the part of the name that identifies this process."""
    return f"{_machine()}.{os.getpid()}"


def is_abandoned(folder: Path) -> bool:
    """Return whether the process that wrote a temporary folder has ended, or the folder is surplus.

    Folders of other machines count as abandoned after a day without a write.

    Raises:
        OSError: the folder is gone, or cannot be read.
    """
    if folder.is_symlink():  # no save makes links
        return False
    if _SURPLUS_NAME.fullmatch(folder.name):
        return True
    last_write = max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
    mark = _MARK.search(folder.name)
    if mark is None or mark[1] != _machine():
        return time.time() - last_write > _IDLE_SECONDS
    try:
        begun = psutil.Process(int(mark[2])).create_time()
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
    return begun > last_write + _CLOCK_SLACK_SECONDS  # a later process got the same id


def _machine() -> str:
    facts = [socket.gethostname()]
    for source in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            path = Path(source)
            facts.append(str(path.readlink()) if path.is_symlink() else path.read_text())
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
