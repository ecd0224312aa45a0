"""torchrun's agent, extended to end its ranks in time and report how each rank ended."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
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

from .attempts import Attempt
from .failure import GroupFailure, explain_failure
from .guardian import Guardian
from .network_rendezvous import NetworkRendezvous
from .node_watch import NodeWatch
from .options import RunOptions
from .places import request_stacks
from .rank_end import RankEnd, read_end
from .starting import InterruptibleLogs
from .stopping_signals import handled_by, stop

# All processes must have ended 5 s after the first failure. The ranks have this part of the time to
# write a last checkpoint; the rest is a reserve for a busy machine.
GRACE_SECONDS = 2.5

# How long to wait for other ranks to fail by themselves: their exceptions help to find the cause.
_SETTLING_SECONDS = 0.5

# How long to wait for the reports of the other nodes.
_REPORTS_SECONDS = 0.5

# How often the main thread looks for signals while another thread starts the ranks.
_LOOKS_EVERY_SECONDS = 0.1

# The prefix of each line of a rank's output.
_LABEL = "[rank ${rank}] "


class Step(Enum):
    """The next step of a node's agent."""

    GO_ON = "let the ranks run"
    END = "end the ranks, and fail"
    REJOIN = "end the ranks, and restart the group with a new node"
    STAY = "wait for the other nodes: if a node fails, all nodes restart"
    LEAVE = "leave"


def next_step(
    codes: Sequence[int | None], *, must_end: bool, must_rejoin: bool, others_done: bool
) -> Step:
    """Return the next step, by the ranks' exit codes (None: running) and the other nodes' state."""
    if any(codes) or must_end:
        return Step.END
    if must_rejoin:
        return Step.REJOIN
    if None in codes:
        return Step.GO_ON
    return Step.LEAVE if others_done else Step.STAY


class RankAgent(LocalElasticAgent):
    """The agent of one node.

    Attributes:
        failure: why the last attempt failed, or None.
        attempts: the attempts until now.
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
        """Make the agent for `run_group`.

        Args:
            options: the options of the group; with several nodes, including this node's address.
            rendezvous: the rendezvous of the nodes.
            command: the arguments of the Python interpreter.
            environments: the variables of each local rank.
            folder: the folder for the output of the ranks.
            guardian: the process that kills ranks that do not end.
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
        self.attempts: list[Attempt] = []
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
            if isinstance(worker_group.spec.rdzv_handler, NetworkRendezvous):
                worker_group.spec.rdzv_handler.end_with(self._watch.is_done)

    def _agree_on_attempt(self, store: Any, node: int, nodes: int) -> None:
        """Adopt the highest restart count of all nodes, because this node may be new."""
        most = self._worker_group.spec.max_restarts
        store.set(f"anyrig/restarts/{node}", str(most - self._remaining_restarts))
        seen = [int(store.get(f"anyrig/restarts/{other}")) for other in range(nodes)]
        self._remaining_restarts = max(0, most - max(seen))

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._guardian.clear()
        self.close_logs()  # of the previous attempt
        self.failure = None
        # In the main thread, PyTorch would install signal handlers. In another thread it does not.
        with ThreadPoolExecutor(1, "anyrig-starting") as thread:
            try:
                starting = thread.submit(super()._start_workers, worker_group)
                # On a busy machine, a signal did not always end a wait without a limit here: it
                # was handled only once all ranks had started (2 of 100, Linux 6.18, Python 3.11).
                while not wait([starting], timeout=_LOOKS_EVERY_SECONDS).done:
                    pass
                pids: dict[int, Any] = starting.result()
            except BaseException:  # the guardian kills the ranks that have started
                self._is_leaving = True
                raise
        for worker in worker_group.workers:
            worker.id = pids[worker.local_rank]
            self._guardian.watch(worker.id)
        self._is_running = True
        self.attempts.append(Attempt(time.time()))
        self._guardian.expect("")
        return pids

    def _leave_if_stopped(self) -> None:
        """Interrupt the start of ranks after a signal: starting a thousand ranks takes minutes."""
        if self._is_leaving:
            raise InterruptedError("the launcher was stopped while it started the ranks")

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """Add the variables of each rank to `envs`, which PyTorch has filled but not yet used."""
        for local_rank, environment in enumerate(self._environments):
            envs[local_rank].update(environment)
        super()._setup_local_watchdog(envs)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        watch = self._watch
        codes = [handler.proc.poll() for handler in self._handlers()]
        step = next_step(
            codes,
            must_end=watch is not None and watch.must_end(),
            must_rejoin=watch is not None and watch.must_rejoin(),
            others_done=watch is None or watch.is_done(),
        )
        if step is Step.END:
            self._end_attempt()
            return RunResult(WorkerState.FAILED)
        if step is Step.REJOIN:
            self._restart_workers(worker_group)
        if watch is not None and step in (Step.STAY, Step.LEAVE):
            watch.report("done")
        if step is not Step.LEAVE:
            return RunResult(WorkerState.HEALTHY)
        result: RunResult = super()._monitor_workers(worker_group)
        self._is_running = False
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self._prepare_restart(worker_group.spec.max_restarts)
        super()._restart_workers(worker_group)

    def _prepare_restart(self, most: int) -> None:
        """Report the failed attempt, or end the ranks if the restart is for a new node."""
        if self.failure is not None:
            attempt = f"attempt {most - self._remaining_restarts} of {most + 1}"
            sys.stderr.write(f"anyrig: {attempt} failed, restarting: {self.failure.cause}\n")
            return
        if self._watch is not None:
            self._watch.report("rejoining")
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
        """Do nothing: `_monitor_workers` has already waited for the other nodes."""

    def _end_attempt(
        self, signum: signal.Signals = signal.SIGTERM, reason: BaseException | None = None
    ) -> None:
        """Stop all ranks of this node, and collect how the ranks of all nodes ended."""
        ends_at = time.monotonic() + GRACE_SECONDS + _REPORTS_SECONDS
        self._is_running = False
        attempt = self.attempts[-1]
        attempt.failed_unix_seconds = time.time()
        stopped = isinstance(reason, SignalException)
        where = "" if self._watch is None else f" on {socket.gethostname()}"
        troubles = [] if reason is None else [_sentence(reason, where)]
        with handled_by(self._kill_at_once):
            self._guardian.end(GRACE_SECONDS)
            if self._watch is not None:
                if stopped:
                    self._watch.report("trouble", troubles[0])
                self._watch.report("failing")
            if not stopped:
                self._wait_for_failures()
            ends = self._stop_ranks(signum, keep_output=self._keeps_output or not stopped)
            if self._watch is not None:
                self._watch.report_ends(ends)
                self._watch.wait_until_over(max(0.1, ends_at - time.monotonic()))
                reported = [*self._watch.troubles]
                reported += [
                    f"{host} has not reported how its ranks ended"
                    for host in self._watch.silent_hosts
                ]
                # If other nodes report a failure, the loss of the store is its consequence.
                troubles = reported if reported and not stopped else troubles + reported
                ends += self._watch.ends
            self.failure = explain_failure(ends, troubles, names_hosts=self._watch is not None)
            attempt.ended_unix_seconds, attempt.failure = time.time(), self.failure
        if self._interrupted is not None and not stopped:
            stop(self._interrupted)

    def _kill_at_once(self, signum: int, _: object) -> None:
        """Kill the ranks without further delay: a second signal came."""
        self._interrupted = signum
        self._guardian.end(0)

    def _wait_for_failures(self) -> None:
        """Give the ranks that are still running time to fail by themselves."""
        ends = time.monotonic() + _SETTLING_SECONDS
        while time.monotonic() < ends and self._running():
            time.sleep(0.02)

    def _running(self) -> list[int]:
        return [handler.proc.pid for handler in self._handlers() if handler.proc.poll() is None]

    def _stop_ranks(self, signum: signal.Signals, *, keep_output: bool) -> list[RankEnd]:
        """Request the stacks of running ranks, end them, and return how each rank ended."""
        context = self._pcontext
        assert context is not None
        workers = self._worker_group.workers
        folders = {
            worker.id: Path(context.error_files[worker.local_rank]).parent for worker in workers
        }
        running = self._running()
        suspended = [pid for pid in running if _is_suspended(pid)]
        request_stacks({pid: folders[pid] for pid in running})
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
    """Return a sentence that states why the agent ends although no rank has failed."""
    if isinstance(reason, SignalException):
        return f"the launcher{where} was stopped ({reason.sigval.name})"
    if isinstance(reason, RendezvousConnectionError):
        return "the connection to the node that hosts the rendezvous is lost"
    return f"the launcher{where} failed: {reason!r}"


def _is_suspended(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False
