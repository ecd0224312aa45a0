"""What this machine lets the ranks have: memory of all kinds, open files, a folder for logs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...devices.survey import read, survey
from ...units import format_bytes
from ..ranks.options import RunOptions
from .finding import Finding, Level

# A rank opens a connection to every other one, and a loader's worker a file for each batch on its
# way; 1024, the usual soft limit, is enough for one machine.
_FEW_FILES = 1024

# A process that has imported torch and opened a process group, rounded up.
_RANK_BYTES = 512 * 2**20

# What loaders' workers hand over lies here. A container gets 64 MiB unless it is told otherwise.
_LITTLE_SHARED_BYTES = 1 * 2**30
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux has it


def check_limits(options: RunOptions) -> Iterator[Finding]:
    """Look at the limits of this machine, for the ranks that are to be on it."""
    yield _memory(options.processes)
    if options.log_folder is not None:
        yield _log_folder(options.log_folder)
    if sys.platform == "win32":
        return
    yield _open_files(options.processes)
    if Path(_SHARED_MEMORY).is_dir():
        yield _shared_memory()
    yield _address_space()
    yield _locked_memory()


def _memory(processes: int) -> Finding:
    free_bytes = read(survey()[-1]).free_bytes or 0
    text = f"{format_bytes(free_bytes)} of the host's memory are free for {processes} ranks"
    if free_bytes >= processes * _RANK_BYTES:
        return Finding("memory", Level.GOOD, text)
    return Finding(
        "memory",
        Level.DOUBTFUL,
        f"{text}; each takes {format_bytes(_RANK_BYTES)} before it holds any data",
        "end what fills it, give the container more (docker run --memory), or start fewer ranks",
    )


def _log_folder(folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        text, advice = f"{folder} cannot be written: {error}", "name another one with --log-dir"
        return Finding("log folder", Level.BAD, text, advice)
    return Finding("log folder", Level.GOOD, f"{folder} can be written")


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


def _address_space() -> Finding:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return Finding("address space", Level.GOOD, "a process may map all memory")
    return Finding(
        "address space",
        Level.DOUBTFUL,
        f"a process may map {format_bytes(soft)}; CUDA maps as much as all cards and the host have",
        "ulimit -v unlimited in the shell that starts the ranks; limit memory by a container",
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
