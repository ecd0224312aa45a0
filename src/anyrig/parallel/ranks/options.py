"""How many ranks, on how many nodes, and where these meet: the flags of torchrun that matter."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...errors import LaunchError


@dataclass(frozen=True)
class RunOptions:
    """What a group of ranks is to be; the names are torchrun's.

    Attributes:
        processes: ranks on this node. Other nodes may have other numbers.
        nodes: ``"2"``, or ``"1:4"`` for as many as come between these.
        rdzv_endpoint: ``"host:port"`` at which several nodes meet; None on one node, where nothing
            listens but on loopback.
        rdzv_id: tells this job's meeting from another's at the same endpoint.
        rdzv_timeout_seconds: how long a node waits for the others.
        max_restarts: how often the group is started again after a failure.
        timeout_seconds: how long a rank waits for another in a collective, where its script does
            not say; None for PyTorch's own default.
        local_address: by which the other nodes reach this one; None has it found.
        log_folder: where each rank's output is kept; None for a temporary one, removed at the end
            unless a rank failed.
    """

    processes: int
    nodes: str = "1"
    rdzv_endpoint: str | None = None
    rdzv_id: str = "anyrig"
    rdzv_timeout_seconds: float = 600.0
    max_restarts: int = 0
    timeout_seconds: float | None = None
    local_address: str | None = None
    log_folder: Path | None = None

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise LaunchError(f"a node needs at least one process, and {self.processes} were asked")
        if self.max_restarts < 0:
            raise LaunchError(f"--max-restarts is a count, and {self.max_restarts} was given")
        if self.timeout_seconds is not None and self.timeout_seconds <= 0:
            raise LaunchError(f"--timeout is in seconds, and {self.timeout_seconds} was given")
        if self.node_counts[1] > 1 and self.rdzv_endpoint is None:
            raise LaunchError(
                f"--nnodes {self.nodes} needs a place where the nodes meet; "
                "name it on every node alike: --rdzv-endpoint HOST:PORT"
            )

    @property
    def node_counts(self) -> tuple[int, int]:
        """The fewest and the most nodes."""
        return read_node_counts(self.nodes)

    @property
    def is_one_rank(self) -> bool:
        """Whether there is nobody to meet and nothing to start again."""
        return self.processes == 1 and self.rdzv_endpoint is None and not self.max_restarts

    @property
    def threads_per_process(self) -> int:
        """The cores of this node over its ranks, at least one: what OMP_NUM_THREADS should be."""
        allowed = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
        cores = len(allowed(0)) if allowed is not None else os.cpu_count() or 1
        return max(1, cores // self.processes)


def read_node_counts(text: str) -> tuple[int, int]:
    """Return the fewest and the most nodes that ``--nnodes`` names: ``"2"``, or ``"1:4"``.

    Raises:
        LaunchError: the text is neither.
    """
    fewest, colon, most = text.partition(":")
    try:
        counts = int(fewest), int(most if colon else fewest)
    except ValueError:
        raise LaunchError(
            f"--nnodes {text!r} is no number of nodes; write 2, or 1:4 for one to four"
        ) from None
    if not 1 <= counts[0] <= counts[1]:
        raise LaunchError(f"--nnodes {text} is no range of nodes; write 2, or 1:4 for one to four")
    return counts
