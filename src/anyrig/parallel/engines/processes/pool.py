"""The worker processes of this process: started once, kept for all models, and ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
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

from ....errors import ReplicaWaitError, SpreadError
from .fork_server import ForkServer
from .link import Link, LinkClosed, Segment
from .part_request import SearchPath, Started

WAIT_SECONDS = 300.0
_LOOK_SECONDS = 0.2  # an interrupt does not wake a wait


class Worker:
    """A process that computes parts of batches for this one."""

    def __init__(self, number: int, server: ForkServer) -> None:
        self.number = number
        # What the worker must forget before its next part: numbers of models, and of calls.
        self.forgotten: list[tuple[str, int]] = []
        self.process: int | None = None  # known when the worker has started
        self._path: list[str] = []  # as the worker has it
        self._server = server
        self._status: int | None = None
        ours, theirs = socket.socketpair()
        self._link = Link(ours)
        with theirs:
            server.fork(theirs, number)
        self.send(str(Path.cwd()))

    @property
    def name(self) -> str:
        """The worker for messages."""
        return f"process {self.number} (pid {self.process})"

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
                    message = self._link.receive(_LOOK_SECONDS)
                    if not isinstance(message, Started):
                        return message
                    self.process = message.process
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
        if self.process is None:
            return (
                f"process {self.number}, which computes a part of each batch, ended before it had "
                "started (what it has written may say why)"
            )
        if self._status is None:
            self._status = self._server.status_of(self.process)
        cause = "for an unknown reason" if self._status is None else f"with status {self._status}"
        if self._status is not None and self._status < 0:
            cause = f"by {signal.Signals(-self._status).name}"
            if self._status == -signal.SIGKILL:
                cause += ", which the system sends when memory is exhausted,"
        return f"{self.name}, which computes a part of each batch, ended {cause}"

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._link.is_closed()

    def kill(self) -> None:
        """Kill the process, if it has started, and do not wait for its end."""
        if self.process is not None and self._status is None:
            self._server.kill(self.process)

    def close(self) -> None:
        """Close the connection, at which the process ends."""
        self._link.close()


class Pool:
    """The workers of this process, which serve one model at a time."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.threads = torch.get_num_threads()  # for all processes together
        self.lock = threading.RLock()
        self.numbers = count(1)  # of models and of calls
        self.generation = 0  # of workers: what earlier ones knew is lost
        self._server: ForkServer | None = None
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
            if self._server is None:
                self._server = ForkServer()
            while len(self._workers) < workers:
                self._workers.append(Worker(len(self._workers) + 1, self._server))

    def _end_with_others(self) -> Worker | None:
        """Return a worker that has ended, after all the others."""
        for worker in self._workers:
            if worker.has_ended():
                worker.how_it_ended()  # which the fork server knows
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
            worker.kill()
        with self.lock:
            workers, self._workers = self._workers, []
            server, self._server = self._server, None
            self.generation += 1
            if server is not None:
                server.end()
            for worker in workers:
                worker.close()


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
