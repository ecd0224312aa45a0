"""The worker processes of this process: started once, kept for all models, and ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

import anyrig

from ....errors import ReplicaWaitError, SpreadError
from .link import Link, LinkClosed, Segment
from .part_request import SearchPath

WAIT_SECONDS = 300.0
_END_SECONDS = 1.0
_LOOK_SECONDS = 0.2  # an interrupt does not wake a wait
_MODULE = "anyrig.parallel.engines.processes.worker"
# What `anyrig run --watch` asks of processes is not meant for these.
_HIDDEN = ("ANYRIG_WATCHERS",)


class Worker:
    """A process that computes parts of batches for this one."""

    def __init__(self, number: int) -> None:
        self.number = number
        # What the worker must forget before its next part: numbers of models, and of calls.
        self.forgotten: list[tuple[str, int]] = []
        self._path: list[str] = []  # as the worker has it
        ours, theirs = socket.socketpair()
        self._link = Link(ours)
        try:
            self.process = self._started(theirs)
            self.send(str(Path.cwd()))
        except BaseException:  # such as Ctrl-C: the worker ends where the link is closed
            self._link.close()
            raise

    def _started(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        with theirs:
            environment = {k: v for k, v in os.environ.items() if k not in _HIDDEN}
            folder = str(Path(anyrig.__file__).parents[1])
            known = environment.get("PYTHONPATH")
            environment["PYTHONSAFEPATH"] = "1"  # not the folder from which the script was started
            environment["PYTHONPATH"] = os.pathsep.join([folder, *([known] if known else [])])
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    _MODULE,
                    str(theirs.fileno()),
                    str(os.getpid()),
                    str(self.number),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                # Ctrl-C in a terminal is for this process, which then ends the workers.
                start_new_session=True,
            )

    @property
    def name(self) -> str:
        """The worker for messages."""
        return f"process {self.number} (pid {self.process.pid})"

    def ask(self, request: Any) -> Segment | None:
        """Send a request, for which the worker may have to import modules; see `send`."""
        if self._path != sys.path:
            self._path = [*sys.path]
            self.send(SearchPath(self._path))
        return self.send(request)

    def send(self, message: Any) -> Segment | None:
        """Send a message; see `Link.send`. Raise SpreadError if the worker has ended."""
        try:
            return self._link.send(message)
        except LinkClosed:
            raise self.lost("this process sent it a batch") from None

    def receive(self, what: str) -> Any:
        """Return the next message; raise SpreadError if none comes."""
        until = time.monotonic() + WAIT_SECONDS
        try:
            while time.monotonic() < until:
                with contextlib.suppress(TimeoutError):
                    return self._link.receive(_LOOK_SECONDS)
        except LinkClosed:
            raise self.lost(f"this process waited for {what}") from None
        raise ReplicaWaitError(
            f"waited {WAIT_SECONDS:g} s for {what} of {self.name}, after this process had computed "
            "its own part. The workers were ended; the next call starts new ones. If they wait for "
            "something that only this process has, use the threads of plan=Replicas()"
        )

    def lost(self, when: str) -> SpreadError:
        """Return the error for a worker that has ended."""
        return SpreadError(
            f"{self.how_it_ended()} while {when}. Parameters and optimizer are in this process, "
            "unharmed: go on with the next step, which starts new processes"
        )

    def how_it_ended(self) -> str:
        """Return in words that this worker ended, and why."""
        try:
            status = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            status = 0
        cause = f"with status {status}"
        if status < 0:
            cause = f"by {signal.Signals(-status).name}"
            if status == -signal.SIGKILL:
                cause += ", which the system sends when memory is exhausted,"
        return f"{self.name}, which computes a part of each batch, ended {cause}"

    def end(self) -> None:
        """End the process."""
        self._link.close()
        self.process.kill()
        self.process.wait()


class Pool:
    """The workers of this process, which serve one model at a time."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.threads = torch.get_num_threads()  # for all processes together
        self.lock = threading.RLock()
        self.numbers = count(1)  # of models and of calls
        self.generation = 0  # of workers: what earlier ones knew is lost
        self._workers: list[Worker] = []

    def start(self, workers: int) -> None:
        """Start processes, without waiting for them, unless as many are there already."""
        with self.lock:
            ended = self._end_with_others()
            if ended is not None:
                warnings.warn(
                    f"{ended.how_it_ended()} between two steps; new processes are started",
                    RuntimeWarning,
                    stacklevel=2,
                )
            while len(self._workers) < workers:
                self._workers.append(Worker(len(self._workers) + 1))

    def _end_with_others(self) -> Worker | None:
        """Return a worker that has ended, after all the others."""
        for worker in self._workers:
            if worker.process.poll() is not None:
                self.end()
                return worker
        return None

    def _require(self, generation: int) -> None:
        """Raise SpreadError if the workers of a generation, and their graphs, are lost."""
        ended = self._end_with_others()
        if ended is not None:
            raise ended.lost("a batch was between its forward and its backward pass")
        if generation != self.generation:
            raise SpreadError(
                "the processes that computed the forward of this batch have ended since, and its "
                "graph with them; call the model again"
            )

    @contextmanager
    def exchanging(self, workers: int, generation: int | None = None) -> Iterator[Sequence[Worker]]:
        """Return workers for a conversation; those of a generation, if one is given.

        If the conversation is interrupted, end all workers, whose state is then unknown. The next
        conversation starts new ones.
        """
        with self.lock:
            if os.getpid() != self.process:
                raise SpreadError(
                    "this process was forked from the one that trains the model; use the model's "
                    "attribute `module` here"
                )
            if generation is None:
                self.start(workers)
            else:
                self._require(generation)
            try:
                yield self._workers[:workers]
            except BaseException:
                self.end()
                raise

    def forget(self, kind: str, number: int) -> None:
        """Have workers forget a model or a call before their next part."""
        for worker in self._workers:
            worker.forgotten.append((kind, number))

    def end(self) -> None:
        """End all workers, also while another thread waits for one of them."""
        for worker in [*self._workers]:  # all at first: Ctrl-C may end the waits below
            worker.process.kill()
        with self.lock:
            workers, self._workers = self._workers, []
            self.generation += 1
            for worker in workers:
                worker.end()


def pool_of_process() -> Pool:
    """Return the workers of this process; a forked process has its own."""
    return _pool_of(os.getpid())


@cache
def _pool_of(process: int) -> Pool:
    pool = Pool()

    def end() -> None:
        if os.getpid() == process:  # a fork has the function, but not the workers
            pool.end()

    atexit.register(end)
    return pool
