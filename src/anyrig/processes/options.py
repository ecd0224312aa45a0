"""The options of a group of ranks, as torchrun's flags give them."""

from __future__ import annotations

import ipaddress
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import GroupOptionError
from .time_limit import MOST_SECONDS

# A rank is a Python process, and the launcher needs two threads and four open files for it.
MOST_PROCESSES = 1024

# Larger values can only be mistakes.
_MOST_NODES = 100_000
_MOST_RESTARTS = 1_000_000
_MOST_ID_CHARACTERS = 200

_HOST_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_PORT = re.compile(r"[0-9]{1,5}")
_COUNT = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class RunOptions:
    """The flags of `anyrig run`; see docs/processes.md.

    Attributes:
        processes: the number of ranks on this node; other nodes may have a different number.
        nodes: the number of nodes: ``"2"``, or ``"1:4"`` for one to four.
        rdzv_endpoint: ``"host:port"``; None on one node, which listens on the loopback only.
        rdzv_id: the id of the job, the same on every node.
        rdzv_timeout_seconds: how long to wait at the rendezvous for the other nodes.
        max_restarts: the maximum number of restarts after a failure.
        timeout_seconds: the default timeout of collectives; None for PyTorch's.
        local_address: the address of this node for the other nodes; None to determine it.
        log_dir: the folder for the ranks' output; None for a temporary folder, removed if the
            group succeeds.
        node_rank: the number of this node; None for the next free number.
        master_port: the ranks' MASTER_PORT on a single node, if the port is free; 0 for any port.
        hidden_streams: the streams that only go to the log files: pairs of a local rank and
            "stdout" or "stderr".
    """

    processes: int
    nodes: str = "1"
    rdzv_endpoint: str | None = None
    rdzv_id: str = "anyrig"
    rdzv_timeout_seconds: float = 600.0
    max_restarts: int = 0
    timeout_seconds: float | None = None
    local_address: str | None = None
    log_dir: Path | None = None
    node_rank: int | None = None
    master_port: int = 0
    hidden_streams: frozenset[tuple[int, str]] = frozenset()

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            GroupOptionError: a value is invalid; the message names the flag, the value and valid
                values.
        """
        most_nodes = self.node_counts[1]
        if self.rdzv_endpoint is not None:
            _check_endpoint(self.rdzv_endpoint)
        elif most_nodes > 1:
            raise GroupOptionError(
                f"--nnodes {self.nodes} needs a rendezvous endpoint, the same on every node: "
                "--rdzv-endpoint HOST:PORT, or --master-addr HOST"
            )
        if not (self.rdzv_id.isprintable() and 1 <= len(self.rdzv_id) <= _MOST_ID_CHARACTERS):
            raise GroupOptionError(
                f"--rdzv-id is {shown(self.rdzv_id)}, and must be a name of 1 to "
                f"{_MOST_ID_CHARACTERS} printable characters, the same on every node"
            )
        _check_seconds("--rdzv-conf timeout", self.rdzv_timeout_seconds)
        if self.timeout_seconds is not None:
            _check_seconds("--timeout", self.timeout_seconds)
        if not 0 <= self.max_restarts <= _MOST_RESTARTS:
            raise GroupOptionError(
                f"--max-restarts is {self.max_restarts}, and must be a number from 0 to "
                f"{_MOST_RESTARTS}"
            )
        if self.local_address is not None and not is_host(self.local_address):
            raise GroupOptionError(
                f"--local-addr is {shown(self.local_address)}, and must be an address or the name "
                "of this node, such as 10.0.0.2 or node1"
            )
        if self.log_dir is not None:
            _check_folder(self.log_dir)
        if not 1 <= self.processes <= MOST_PROCESSES:
            raise GroupOptionError(
                f"--nproc-per-device would start {self.processes} ranks on this node, and a node "
                f"can have 1 to {MOST_PROCESSES}: each rank is a process, for which the launcher "
                "keeps four files open. Start fewer ranks, or use more nodes"
            )

    @property
    def node_counts(self) -> tuple[int, int]:
        """The minimum and the maximum number of nodes."""
        return read_node_counts(self.nodes)

    @property
    def is_one_rank(self) -> bool:
        """Whether the group needs no agent: one rank, no restarts, no output to keep or hide."""
        needs_agent = self.rdzv_endpoint or self.max_restarts or self.log_dir
        return self.processes == 1 and not needs_agent and not self.hidden_streams

    @property
    def threads_per_process(self) -> int:
        """The value of OMP_NUM_THREADS: the cores of this node divided by its ranks, at least 1."""
        allowed = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
        cores = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
        return max(1, cores // self.processes)


def read_node_counts(text: str) -> tuple[int, int]:
    """Return the minimum and the maximum of ``--nnodes``: ``"2"``, or ``"1:4"``.

    Raises:
        GroupOptionError: the text has a different format, or a number is out of range.
    """
    fewest, colon, most = text.partition(":")
    texts = (fewest, most if colon else fewest)
    if all(_COUNT.fullmatch(count) for count in texts):
        counts = int(texts[0]), int(texts[1])
        if 1 <= counts[0] <= counts[1] <= _MOST_NODES:
            return counts
    raise GroupOptionError(
        f"--nnodes is {shown(text)}, and must be a number of nodes from 1 to {_MOST_NODES}, or "
        "the minimum and the maximum: write 2, or 1:4 for one to four"
    )


def _check_endpoint(text: str) -> None:
    host, _, port = text.rpartition(":")
    if not (is_host(host) and _PORT.fullmatch(port) and 1 <= int(port) <= 65535):
        raise GroupOptionError(
            f"--rdzv-endpoint is {shown(text)}, and must be HOST:PORT, with a port from 1 to "
            "65535, the same on every node: write for example node0:29400"
        )


def is_host(text: str) -> bool:
    """Return whether `text` can be the address or the name of a node."""
    with suppress(ValueError):
        ipaddress.ip_address(text)
        return True
    return _HOST_NAME.fullmatch(text) is not None


def _check_seconds(flag: str, seconds: float) -> None:
    if not 0 < seconds <= MOST_SECONDS:  # NaN fails, too
        raise GroupOptionError(
            f"{flag} is {seconds:g}, and must be a number of seconds above 0, and not above "
            f"{MOST_SECONDS:.0f} (eleven days), because PyTorch counts milliseconds"
        )


def _check_folder(folder: Path) -> None:
    """Refuse a path that is not a writable folder and cannot become one."""
    try:
        if "\0" in str(folder):
            raise ValueError("a path cannot contain a zero byte")
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
            return
        why = f"{shown(nearest)} is {'not writable' if nearest.is_dir() else 'not a folder'}"
    except (OSError, ValueError) as error:  # such as a name that is too long
        why = getattr(error, "strerror", None) or str(error)
    raise GroupOptionError(
        f"--log-dir is {shown(folder)}, and must be a folder, or the path of a new one: {why}"
    )


def shown(value: object) -> str:
    """Return a value for a message: quoted, and shortened if long."""
    text = repr(str(value))
    return text if len(text) <= 80 else f"{text[:60]}…{text[-1]} ({len(str(value))} characters)"
