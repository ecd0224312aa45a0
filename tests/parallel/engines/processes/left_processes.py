"""What is left of a program and of the processes that it has started.

They are found by an environment variable, which each process inherits.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

MARK = "ANYRIG_TEST_PROGRAM"
LIMIT_SECONDS = 120.0


def processes_of(program: str) -> list[int]:
    """Return the processes that have started with `program` in their variable `MARK`."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # no process, or one that has ended
            continue
        if f"{MARK}={program}".encode() in environment:
            found.append(int(folder.name))
    return found


def wait_for_end(program: str) -> float:
    """Return after how many seconds no process of a program is left."""
    begin = time.monotonic()
    while processes_of(program):
        assert time.monotonic() - begin < LIMIT_SECONDS, "a process is left"
        time.sleep(0.02)
    return time.monotonic() - begin


def files_of(processes: list[int], temporary: Path) -> list[str]:
    """Return the shared memory segments of processes, and the files in their temporary folder."""
    numbers = set(map(str, processes))  # PyTorch's segments are named torch_NUMBER_…
    shared = [path.name for path in Path("/dev/shm").iterdir()]
    found = [name for name in shared if numbers & set(re.findall(r"\d+", name))]
    files = [path.name for path in temporary.iterdir()]
    return found + [name for name in files if not name.startswith("torchinductor_")]  # its cache
