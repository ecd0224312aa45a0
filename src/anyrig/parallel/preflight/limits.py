"""The limits that the system sets to a process: open files, locked memory, shared memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ...units import format_bytes
from .finding import Finding, Level

# A rank opens a connection to every other one, and a loader's worker a file for each batch on its
# way; 1024, the usual soft limit, is enough for one machine.
_FEW_FILES = 1024

# What loaders' workers hand over lies here. A container gets 64 MiB unless it is told otherwise.
_LITTLE_SHARED_BYTES = 1 * 2**30
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux has it


def check_limits(processes: int) -> Iterator[Finding]:
    """Look at the limits of this machine, for `processes` ranks on it."""
    if sys.platform == "win32":
        return
    yield _open_files(processes)
    if Path(_SHARED_MEMORY).is_dir():
        yield _shared_memory()
    yield _locked_memory()


def _open_files(processes: int) -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        return Finding(
            "open files",
            Level.BAD,
            f"a process may open {soft} files; {processes} ranks and their loaders need more",
            f"raise it in the shell that starts them: ulimit -n {min(hard, 65536)}"
            if hard == resource.RLIM_INFINITY or hard >= _FEW_FILES
            else "raise the hard limit (nofile in /etc/security/limits.conf, or the container's)",
        )
    return Finding("open files", Level.GOOD, f"a process may open {soft} files")


def _shared_memory() -> Finding:
    status = os.statvfs(_SHARED_MEMORY)
    total, free = status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail
    text = f"{_SHARED_MEMORY} has {format_bytes(free)} free of {format_bytes(total)}"
    if free >= _LITTLE_SHARED_BYTES:
        return Finding("shared memory", Level.GOOD, text)
    return Finding(
        "shared memory",
        Level.DOUBTFUL,
        f"{text}; batches of loaders' workers and NCCL's buffers lie there",
        "give the container more (docker run --shm-size=8g or --ipc=host), or clear what fills it",
    )


def _locked_memory() -> Finding:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding("locked memory", Level.GOOD, "a process may lock all memory")
    text = f"a process may lock {format_bytes(soft)}"
    if not Path("/sys/class/infiniband").is_dir():
        return Finding("locked memory", Level.GOOD, f"{text}, and there is no InfiniBand")
    return Finding(
        "locked memory",
        Level.DOUBTFUL,
        f"{text}; InfiniBand needs to lock the buffers it sends",
        "ulimit -l unlimited in the shell that starts the ranks, or memlock in the container's",
    )
