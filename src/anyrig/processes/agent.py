"""torchrun's agent, which ends its ranks in time and reports how each rank ended."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import psutil
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousHandler

from .failure import GroupFailure, explain_failure
from .guardian import Guardian
from .node_watch import NodeWatch
from .options import RunOptions
from .places import ask_for_places
from .rank_end import RankEnd, read_end
from .starting import InterruptibleLogs
from .stopping_signals import handled_by, stop

# All processes must have ended 5 s after the first failure. A rank has this long to write its last
# checkpoint; the remaining time is for a busy machine.
GRACE_SECONDS = 2.5

# How long the other ranks have to fail by themselves: their exceptions help to find the cause.
_SETTLING_SECONDS = 0.5

# How long to wait for the reports of the other nodes.
_HEARING_SECONDS = 0.5

# The prefix of each line of a rank's output.
_LABEL = "[rank ${rank}] "


class Step(Enum):
    """The next step of a node's agent."""

    GO_ON = "let the ranks run"
    END = "end the ranks, and fail"
    MEET_AGAIN = "end the ranks, and meet a new node"
    STAY = "wait for the other nodes: if one fails, all nodes start again"
    LEAVE = "leave"


def next_step(
    codes: Sequence[int | None], *, must_end: bool, must_meet_again: bool, others_done: bool
) -> Step:
    """Choose the next step from the ranks' exit codes (None: still running) and the other nodes."""
    if any(codes) or must_end:
        return Step.END
    if must_meet_again:
        return Step.MEET_AGAIN
    if None in codes:
        return Step.GO_ON
    return Step.LEAVE if others_done else Step.STAY


class RankAgent(LocalElasticAgent):
    """The agent of one node.

    Attributes:
        failure: why the last attempt failed, or None.
    """

    def __init__(
        self,
        options: RunOptions,
        rendezvous: RendezvousHandler,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        folder: Path,
        guardian: Guardian,
    ) -> None:
        """See `run_group`. With several nodes, `options` includes this node's address.

        `folder` gets the output of the ranks, and `guardian` kills ranks that do not end.
        """
        super().__init__(
            WorkerSpec(
                role="rank",
                local_world_size=options.processes,
                entrypoint=sys.executable,
                args=tuple(command),
                rdzv_handler=rendezvous,
                max_restarts=options.max_restarts,
                monitor_interval=0.1,
                local_addr=options.local_address,
            ),
            logs_specs=InterruptibleLogs(
                str(folder), guardian, self._leave_if_stopped, options.hidden_streams
            ),
            log_line_prefix_template=_LABEL,
        )
        self.failure: GroupFailure | None = None
        self._environments = environments
        self._guardian = guardian
        self._address = options.local_address
        self._keeps_output = options.log_dir is not None
        self._is_running = False
        self._is_leaving = False
        self._watch: NodeWatch | None = None
        self._interrupted: int | None = None

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        nodes, node = worker_group.group_world_size, worker_group.group_rank
        assert nodes is not None
        assert node is not None
        if nodes > 1:
            self._agree_on_attempt(worker_group.store, node, nodes)
            host = f"{socket.gethostname()} ({self._address})"
            self._watch = NodeWatch(worker_group.store, node, nodes, host, self._address)

    def _agree_on_attempt(self, store: Any, node: int, nodes: int) -> None:
        """Take over the highest restart count of all nodes: this node may be new."""
        most = self._worker_group.spec.max_restarts
        store.set(f"anyrig/restarts/{node}", str(most - self._remaining_restarts))
        seen = [int(store.get(f"anyrig/restarts/{other}")) for other in range(nodes)]
        self._remaining_restarts = max(0, most - max(seen))

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._guardian.clear()
        self.close_logs()  # those of the attempt before
        self.failure = None
        # PyTorch installs signal handlers in the main thread, unless a variable of this process's
        # environment says otherwise. In another thread it installs none.
        with ThreadPoolExecutor(1, "anyrig-starting") as thread:
            try:
                starting = thread.submit(super()._start_workers, worker_group)
                pids: dict[int, Any] = starting.result()
            except BaseException:  # the guardian kills the ranks that were started
                self._is_leaving = True
                raise
        for worker in worker_group.workers:
            worker.id = pids[worker.local_rank]
            self._guardian.watch(worker.id)
        self._is_running = True
        self._guardian.expect("")
        return pids

    def _leave_if_stopped(self) -> None:
        """Stop starting ranks after a signal: starting a thousand ranks takes minutes."""
        if self._is_leaving:
            raise InterruptedError("stopped while the ranks were being started")

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """Add variables to `envs`: PyTorch calls this between making and using them."""
        for local_rank, environment in enumerate(self._environments):
            envs[local_rank].update(environment)
        super()._setup_local_watchdog(envs)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        watch = self._watch
        codes = [handler.proc.poll() for handler in self._handlers()]
        step = next_step(
            codes,
            must_end=watch is not None and watch.must_end(),
            must_meet_again=watch is not None and watch.must_meet_again(),
            others_done=watch is None or watch.is_done(),
        )
        if step is Step.END:
            self._end_attempt()
            return RunResult(WorkerState.FAILED)
        if step is Step.MEET_AGAIN:
            self._restart_workers(worker_group)
        if watch is not None and step in (Step.STAY, Step.LEAVE):
            watch.say("done")
        if step is not Step.LEAVE:
            return RunResult(WorkerState.HEALTHY)
        result: RunResult = super()._monitor_workers(worker_group)
        self._is_running = False
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self._prepare_restart(worker_group.spec.max_restarts)
        super()._restart_workers(worker_group)

    def _prepare_restart(self, most: int) -> None:
        """Report a failed attempt; if a new node came instead, have the ranks end."""
        if self.failure is not None:
            attempt = f"attempt {most - self._remaining_restarts} of {most + 1}"
            sys.stderr.write(f"anyrig: {attempt} failed, starting again: {self.failure.cause}\n")
            return
        if self._watch is not None:
            self._watch.say("meeting again")
        self._guardian.end(GRACE_SECONDS)
        self._is_running = False

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, *rest: Any, **options: Any
    ) -> None:
        if self._is_running:
            # PyTorch calls this method while it handles the exception that ends the agent.
            self._end_attempt(death_sig, sys.exc_info()[1])
        super()._shutdown(death_sig, *rest, **options)
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _exit_barrier(self) -> None:
        """Do nothing: `_monitor_workers` has waited for the other nodes."""

    def _end_attempt(
        self, signum: signal.Signals = signal.SIGTERM, reason: BaseException | None = None
    ) -> None:
        """Stop all ranks of this node, and collect how ranks ended, here and on the other nodes."""
        ends_at = time.monotonic() + GRACE_SECONDS + _HEARING_SECONDS
        self._is_running = False
        stopped = isinstance(reason, SignalException)
        where = "" if self._watch is None else f" on {socket.gethostname()}"
        troubles = [] if reason is None else [_sentence(reason, where)]
        with handled_by(self._hurry):
            self._guardian.end(GRACE_SECONDS)
            if self._watch is not None:
                if stopped:
                    self._watch.say("trouble", troubles[0])
                self._watch.say("failing")
            if not stopped:
                self._let_settle()
            ends = self._stop_ranks(signum, keep_output=self._keeps_output or not stopped)
            if self._watch is not None:
                self._watch.say_over(ends)
                self._watch.wait_until_over(max(0.1, ends_at - time.monotonic()))
                heard = [*self._watch.troubles]
                heard += [
                    f"{host} has not reported how its ranks ended" for host in self._watch.unheard
                ]
                # The loss of the store follows from what the other nodes report.
                troubles = heard if heard and not stopped else troubles + heard
                ends += self._watch.ends
            self.failure = explain_failure(ends, troubles, names_hosts=self._watch is not None)
        if self._interrupted is not None and not stopped:
            stop(self._interrupted)

    def _hurry(self, signum: int, _: object) -> None:
        """Kill the ranks at once: a signal came while they were ending."""
        self._interrupted = signum
        self._guardian.end(0)

    def _let_settle(self) -> None:
        ends = time.monotonic() + _SETTLING_SECONDS
        while time.monotonic() < ends and self._running():
            time.sleep(0.02)

    def _running(self) -> list[int]:
        return [each.proc.pid for each in self._handlers() if each.proc.poll() is None]

    def _stop_ranks(self, signum: signal.Signals, *, keep_output: bool) -> list[RankEnd]:
        """Have the running ranks write their stacks, end them, and return how each rank ended."""
        context = self._pcontext
        assert context is not None
        workers = self._worker_group.workers
        folders = {
            worker.id: Path(context.error_files[worker.local_rank]).parent for worker in workers
        }
        running = self._running()
        suspended = [pid for pid in running if _is_suspended(pid)]
        ask_for_places({pid: folders[pid] for pid in running})
        context.close(signum)
        codes = {handler.proc.pid: handler.proc.poll() for handler in self._handlers()}
        ends = [
            read_end(
                worker.global_rank,
                folders[worker.id],
                codes[worker.id] or 0,
                was_stopped=worker.id in running,
                suspended=worker.id in suspended,
            )
            for worker in workers
        ]
        return ends if keep_output else [replace(end, folder=None) for end in ends]

    def close_logs(self) -> None:
        """Close the files of ranks that ended by themselves, which PyTorch's agent leaves open."""
        if self._pcontext is not None:
            for tail in self._pcontext._tail_logs:  # private; its threads never end by themselves
                tail.stop()
        for handler in self._handlers():
            # Private; a ResourceWarning would show that the names have changed.
            for stream in (handler._stdout, handler._stderr):
                if stream is not None:
                    stream.close()

    def _handlers(self) -> list[Any]:
        return list(getattr(self._pcontext, "subprocess_handlers", {}).values())


def _sentence(reason: BaseException, where: str) -> str:
    """Return a sentence: why the agent ends although no rank has failed."""
    if isinstance(reason, SignalException):
        return f"the launcher{where} was stopped ({reason.sigval.name})"
    if isinstance(reason, RendezvousConnectionError):
        return "the connection to the node that hosts the meeting place is lost"
    return f"the launcher{where} failed: {reason!r}"


def _is_suspended(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False
