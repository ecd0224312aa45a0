"""The limits of this node: memory, open files, the folder for logs, peer access."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...devices.activity import read
from ...devices.inventory import survey
from ...devices.link import Link
from ...units import format_bytes, format_count
from ..options import RunOptions
from .finding import Finding, bad, doubtful, good

# A rank opens a connection to every other rank, and a loader's worker opens a file for each batch
# in flight. 1024, the usual soft limit, is enough for one node.
_FEW_FILES = 1024

# The memory of a process that has imported torch and created a process group, rounded up.
_RANK_BYTES = 512 * 2**20

# The workers of loaders pass batches through shared memory. Docker's default is 64 MiB.
_LITTLE_SHARED_BYTES = 1 * 2**30
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - Linux


def check_limits(options: RunOptions) -> Iterator[Finding]:
    """Yield findings on the limits of this process, which its ranks inherit."""
    ranks = options.processes
    yield judge_memory(read(survey()[-1]).free_bytes or 0, ranks)
    if sys.platform != "win32":
        import resource

        def known(limit: int) -> int | None:
            return None if limit == resource.RLIM_INFINITY else limit

        soft, hard = map(known, resource.getrlimit(resource.RLIMIT_NOFILE))
        yield judge_open_files(soft, hard, ranks)
        if Path(_SHARED_MEMORY).is_dir():
            shared = shutil.disk_usage(_SHARED_MEMORY)
            yield judge_shared_memory(shared.free, shared.total)
        yield judge_address_space(known(resource.getrlimit(resource.RLIMIT_AS)[0]))
        locked_bytes = known(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
        yield judge_locked_memory(locked_bytes, Path("/sys/class/infiniband").is_dir())
    if options.log_dir is not None:
        yield _log_folder(options.log_dir)


def judge_memory(free_bytes: int, ranks: int) -> Finding:
    """Check the free memory of the host."""
    return _doubtful_unless(
        free_bytes >= ranks * _RANK_BYTES,
        "memory",
        f"{format_bytes(free_bytes)} of the host's memory are free for "
        f"{format_count(ranks, 'rank')}",
        f"each rank needs {format_bytes(_RANK_BYTES)} before it holds any data",
        "end other processes, give the container more memory (docker run --memory), or start fewer "
        "ranks",
    )


def judge_open_files(soft: int | None, hard: int | None, ranks: int) -> Finding:
    """Check the soft and the hard limit of open files; None means unlimited."""
    if soft is None or soft >= _FEW_FILES:
        count = "any number of" if soft is None else soft
        return good("open files", f"a process may open {count} files")
    advice = "raise the hard limit (nofile in /etc/security/limits.conf, or the container's limit)"
    if hard is None or hard >= _FEW_FILES:
        most = min(hard or 65536, 65536)
        advice = f"raise the limit in the shell that starts the ranks: ulimit -n {most}"
    text = f"a process may open {soft} files; {format_count(ranks, 'rank')} with loaders need more"
    return bad("open files", text, advice)


def judge_shared_memory(free_bytes: int, all_bytes: int) -> Finding:
    """Check the free shared memory."""
    return _doubtful_unless(
        free_bytes >= _LITTLE_SHARED_BYTES,
        "shared memory",
        f"{_SHARED_MEMORY} has {format_bytes(free_bytes)} free of {format_bytes(all_bytes)}",
        "the workers of loaders and NCCL need shared memory for batches and buffers",
        "give the container more (docker run --shm-size=8g or --ipc=host), or delete files in "
        f"{_SHARED_MEMORY}",
    )


def judge_address_space(most_bytes: int | None) -> Finding:
    """Check the limit of a process's address space; None means unlimited."""
    return _doubtful_unless(
        most_bytes is None,
        "address space",
        f"a process may map {'all memory' if most_bytes is None else format_bytes(most_bytes)}",
        "CUDA maps the memory of all GPUs and of the host",
        "run ulimit -v unlimited in the shell that starts the ranks; to limit memory, use a "
        "container",
    )


def judge_locked_memory(most_bytes: int | None, has_infiniband: bool) -> Finding:
    """Check the limit of locked memory, which only InfiniBand needs; None means unlimited."""
    text = f"a process may lock {'all memory' if most_bytes is None else format_bytes(most_bytes)}"
    if most_bytes is not None and not has_infiniband:
        return good("locked memory", f"{text}, and there is no InfiniBand")
    return _doubtful_unless(
        most_bytes is None,
        "locked memory",
        text,
        "InfiniBand locks the buffers that it sends",
        "run ulimit -l unlimited in the shell that starts the ranks, or docker run --ulimit "
        "memlock=-1",
    )


def _doubtful_unless(is_enough: bool, check: str, text: str, why: str, advice: str) -> Finding:
    return good(check, text) if is_enough else doubtful(check, f"{text}; {why}", advice)


def _log_folder(folder: Path) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return good("log folder", f"{folder} is writable")
    except OSError as error:
        text = f"{folder} is not writable: {error}"
        return bad("log folder", text, "name another folder with --log-dir")


def check_peers(links: Sequence[Link]) -> Iterator[Finding]:
    """Yield findings on peer access between GPUs, except pairs for which it is unknown."""
    known = [link for link in links if link.peer_access is not None]
    without = [link for link in known if not link.peer_access]
    for link in without:
        yield doubtful(
            "peer access",
            f"{link.first} and {link.second} copy through the host's memory",
            "nothing, if the GPUs do not support peer access; in a virtual machine, check ACS and "
            "IOMMU",
        )
    if known and not without:
        gpus = {device for link in known for device in (link.first, link.second)}
        yield good("peer access", f"{len(gpus)} GPUs can access each other's memory")
