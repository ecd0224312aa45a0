"""torchrun's agent, with ranks that end in time, and what they left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from .guardian import Guardian

# From the first sign that the group must end: what a rank has to write its last checkpoint in.
# Less than the 5 s within which nothing may be left.
GRACE_SECONDS = 4.0


class RankAgent(LocalElasticAgent):
    """The agent of one node. Overrides the methods that an agent of one's own may override.

    Attributes:
        failures: what ended badly, by rank, in the last attempt.
        folders: where each rank of this node has its output, by rank.
    """

    guardian: Guardian

    def __init__(self, *arguments: Any, guardian: Guardian, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.guardian = guardian
        self.failures: dict[int, ProcessFailure] = {}
        self.folders: dict[int, Path] = {}

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.guardian.forget()
        self.failures = {}
        pids: dict[int, Any] = super()._start_workers(worker_group)
        for pid in pids.values():
            self.guardian.watch(pid)
        assert self._pcontext is not None
        self.folders = {
            worker.global_rank: Path(self._pcontext.error_files[worker.local_rank]).parent
            for worker in worker_group.workers
        }
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        # The agent gives the others 30 s once one has failed; here they have less.
        if any(_has_failed(worker.id) for worker in worker_group.workers):
            self.guardian.end(GRACE_SECONDS)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.failures:
            self.failures = dict(result.failures)
        return result

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, *rest: Any, **options: Any
    ) -> None:
        self.guardian.end(GRACE_SECONDS)
        super()._shutdown(death_sig, *rest, **options)

    def close_logs(self) -> None:
        """Close what the agent leaves open: the files of the ranks that ended by themselves."""
        for handler in getattr(self._pcontext, "subprocess_handlers", {}).values():
            for stream in (handler._stdout, handler._stderr):  # private; a warning tells if it goes
                if stream is not None:
                    stream.close()


def _has_failed(pid: Any) -> bool:
    """Whether the child has ended with an error; it is left for the agent to reap."""
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, TypeError):  # reaped already, or not started
        return False
    return ended is not None and ended.si_status != 0
