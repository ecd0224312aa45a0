"""What this machine lets the ranks have: memory of all kinds, open files, logs, peer access."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...devices.activity import read
from ...devices.inventory import survey
from ...devices.link import Link
from ...units import format_bytes, format_count
from ..ranks.options import RunOptions
from .finding import Finding, bad, doubtful, good

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
    folder = options.log_folder
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        text = f"{folder} cannot be written: {error}"
        yield bad("log folder", text, "name another one with --log-dir")
    else:
        yield good("log folder", f"{folder} can be written")


def judge_limits(limits: Limits, processes: int) -> Iterator[Finding]:
    """Say whether that many ranks get along with these limits."""
    ranks = format_count(processes, "rank")
    yield _enough(
        limits.free_bytes >= processes * _RANK_BYTES,
        "memory",
        f"{format_bytes(limits.free_bytes)} of the host's memory are free for {ranks}",
        f"each takes {format_bytes(_RANK_BYTES)} before it holds any data",
        "end what fills it, give the container more (docker run --memory), or start fewer ranks",
    )
    if sys.platform == "win32":
        return
    yield _open_files(limits.open_files, limits.most_open_files, ranks)
    if limits.shared_bytes is not None:
        free, size = map(format_bytes, (limits.shared_free_bytes, limits.shared_bytes))
        yield _enough(
            limits.shared_free_bytes >= _LITTLE_SHARED_BYTES,
            "shared memory",
            f"{_SHARED_MEMORY} has {free} free of {size}",
            "batches of loaders' workers and NCCL's buffers lie there",
            "give the container more (docker run --shm-size=8g or --ipc=host), or clear what fills "
            "it",
        )
    most_bytes = limits.address_bytes
    yield _enough(
        most_bytes is None,
        "address space",
        f"a process may map {'all memory' if most_bytes is None else format_bytes(most_bytes)}",
        "CUDA maps as much as all GPUs and the host have",
        "ulimit -v unlimited in the shell that starts the ranks; limit memory by a container",
    )
    most_bytes = limits.locked_bytes
    text = f"a process may lock {'all memory' if most_bytes is None else format_bytes(most_bytes)}"
    if most_bytes is not None and not limits.has_infiniband:
        text += ", and there is no InfiniBand"
    yield _enough(
        most_bytes is None or not limits.has_infiniband,
        "locked memory",
        text,
        "InfiniBand needs to lock the buffers it sends",
        "ulimit -l unlimited in the shell that starts the ranks, or memlock in the container's",
    )


def check_peers(links: Sequence[Link]) -> Iterator[Finding]:
    """Look at the path between every two cards; what is not known of one is not told."""
    known = [link for link in links if link.peer_access is not None]
    without = [link for link in known if not link.peer_access]
    for link in without:
        yield doubtful(
            "peer access",
            f"{link.first} and {link.second} copy through the host's memory",
            "nothing, on cards without it; in a virtual machine, look at ACS and IOMMU",
        )
    if known and not without:
        cards = {device for link in known for device in (link.first, link.second)}
        yield good("peer access", f"{len(cards)} cards read each other's memory")


def _enough(is_enough: bool, check: str, text: str, why: str, advice: str) -> Finding:
    return good(check, text) if is_enough else doubtful(check, f"{text}; {why}", advice)


def _open_files(soft: int | None, hard: int | None, ranks: str) -> Finding:
    if soft is None or soft >= _FEW_FILES:
        count = "any number of" if soft is None else soft
        return good("open files", f"a process may open {count} files")
    advice = "raise the hard limit (nofile in /etc/security/limits.conf, or the container's)"
    if hard is None or hard >= _FEW_FILES:
        count = min(hard or 65536, 65536)
        advice = f"raise it in the shell that starts them: ulimit -n {count}"
    text = f"a process may open {soft} files; {ranks} with loaders need more"
    return bad("open files", text, advice)
