"""What this machine lets the ranks have: memory of all kinds, open files, a folder for logs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...devices.activity import read
from ...devices.inventory import survey
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


@dataclass(frozen=True)
class Limits:
    """What one machine, and the system on it, allows. None is no limit, or none of its kind.

    Attributes:
        free_bytes: of the host's memory.
        open_files: that a process may open.
        most_open_files: to which a process may raise that.
        shared_free_bytes: of the file system of shared memory.
        shared_bytes: its size; None where there is no such file system.
        address_bytes: that a process may map.
        locked_bytes: that a process may lock.
        has_infiniband: whether there are such adapters.
    """

    free_bytes: int
    open_files: int | None = None
    most_open_files: int | None = None
    shared_free_bytes: int = 0
    shared_bytes: int | None = None
    address_bytes: int | None = None
    locked_bytes: int | None = None
    has_infiniband: bool = False

    @classmethod
    def of_this_machine(cls) -> Limits:
        """Read what holds for this process, and so for the ranks that it starts."""
        free_bytes = read(survey()[-1]).free_bytes or 0
        if sys.platform == "win32":
            return cls(free_bytes)
        import resource

        def known(limit: int) -> int | None:
            return None if limit == resource.RLIM_INFINITY else limit

        soft, hard = map(known, resource.getrlimit(resource.RLIMIT_NOFILE))
        shared = os.statvfs(_SHARED_MEMORY) if Path(_SHARED_MEMORY).is_dir() else None
        return cls(
            free_bytes,
            open_files=soft,
            most_open_files=hard,
            shared_free_bytes=shared.f_frsize * shared.f_bavail if shared else 0,
            shared_bytes=shared.f_frsize * shared.f_blocks if shared else None,
            address_bytes=known(resource.getrlimit(resource.RLIMIT_AS)[0]),
            locked_bytes=known(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
            has_infiniband=Path("/sys/class/infiniband").is_dir(),
        )


def check_limits(options: RunOptions) -> Iterator[Finding]:
    """Look at the limits of this machine, for the ranks that are to be on it."""
    yield from judge_limits(Limits.of_this_machine(), options.processes)
    if options.log_dir is not None:
        yield _log_folder(options.log_dir)


def judge_limits(limits: Limits, processes: int) -> Iterator[Finding]:
    """Say whether that many ranks get along with these limits."""
    yield _memory(limits.free_bytes, processes)
    if sys.platform == "win32":
        return
    yield _open_files(limits.open_files, limits.most_open_files, processes)
    if limits.shared_bytes is not None:
        yield _shared_memory(limits.shared_free_bytes, limits.shared_bytes)
    yield _address_space(limits.address_bytes)
    yield _locked_memory(limits.locked_bytes, limits.has_infiniband)


def _memory(free_bytes: int, processes: int) -> Finding:
    ranks = f"{processes} {_ranks(processes)}"
    text = f"{format_bytes(free_bytes)} of the host's memory are free for {ranks}"
    if free_bytes >= processes * _RANK_BYTES:
        return Finding("memory", Level.GOOD, text)
    return Finding(
        "memory",
        Level.DOUBTFUL,
        f"{text}; each takes {format_bytes(_RANK_BYTES)} before it holds any data",
        "end what fills it, give the container more (docker run --memory), or start fewer ranks",
    )


def _ranks(count: int) -> str:
    return "rank" if count == 1 else "ranks"


def _log_folder(folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        text, advice = f"{folder} cannot be written: {error}", "name another one with --log-dir"
        return Finding("log folder", Level.BAD, text, advice)
    return Finding("log folder", Level.GOOD, f"{folder} can be written")


def _open_files(soft: int | None, hard: int | None, processes: int) -> Finding:
    if soft is None or soft >= _FEW_FILES:
        count = "any number of" if soft is None else soft
        return Finding("open files", Level.GOOD, f"a process may open {count} files")
    can_raise = hard is None or hard >= _FEW_FILES
    return Finding(
        "open files",
        Level.BAD,
        f"a process may open {soft} files; {processes} {_ranks(processes)} with loaders need more",
        f"raise it in the shell that starts them: ulimit -n {min(hard or 65536, 65536)}"
        if can_raise
        else "raise the hard limit (nofile in /etc/security/limits.conf, or the container's)",
    )


def _shared_memory(free_bytes: int, all_bytes: int) -> Finding:
    text = f"{_SHARED_MEMORY} has {format_bytes(free_bytes)} free of {format_bytes(all_bytes)}"
    if free_bytes >= _LITTLE_SHARED_BYTES:
        return Finding("shared memory", Level.GOOD, text)
    return Finding(
        "shared memory",
        Level.DOUBTFUL,
        f"{text}; batches of loaders' workers and NCCL's buffers lie there",
        "give the container more (docker run --shm-size=8g or --ipc=host), or clear what fills it",
    )


def _address_space(most_bytes: int | None) -> Finding:
    if most_bytes is None:
        return Finding("address space", Level.GOOD, "a process may map all memory")
    return Finding(
        "address space",
        Level.DOUBTFUL,
        f"a process may map {format_bytes(most_bytes)}; CUDA maps as much as all GPUs and the host "
        "have",
        "ulimit -v unlimited in the shell that starts the ranks; limit memory by a container",
    )


def _locked_memory(most_bytes: int | None, has_infiniband: bool) -> Finding:
    if most_bytes is None:
        return Finding("locked memory", Level.GOOD, "a process may lock all memory")
    text = f"a process may lock {format_bytes(most_bytes)}"
    if not has_infiniband:
        return Finding("locked memory", Level.GOOD, f"{text}, and there is no InfiniBand")
    return Finding(
        "locked memory",
        Level.DOUBTFUL,
        f"{text}; InfiniBand needs to lock the buffers it sends",
        "ulimit -l unlimited in the shell that starts the ranks, or memlock in the container's",
    )
