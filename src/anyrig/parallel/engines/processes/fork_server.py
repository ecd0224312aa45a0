"""The process from which workers are forked: it imports torch once, and they share its pages.

::

    this process                fork server                       worker 1, worker 2 …
    start ────────────────────▶ imports torch
    fork(socket, number) ─────▶ fork ───────────────────────────▶ serves its socket
    status_of(worker) ────────▶ waits for its child ──▶ status
    end ──────────────────────▶ kills its children, waits for them, ends

The fork server computes nothing and has one thread when it forks. A worker that has ended stays in
the table of processes until its status is read, so its number never means another process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import anyrig

from ....processes.host_memory import keep_freed_memory

_MODULE = "anyrig.parallel.engines.processes.worker"
_END_SECONDS = 1.0
# What `anyrig run --watch` asks of processes is not meant for these.
_HIDDEN = ("ANYRIG_WATCHERS",)
# A child of which the status is asked, or 0 to fork, and the number of the new worker.
REQUEST = struct.Struct("=qq")
STATUS = struct.Struct("=q")
RUNS = 1000  # no status of a process


class ForkServer:
    """A process that forks workers for this one; see above. It has the environment of its start."""

    def __init__(self) -> None:
        self._end, theirs = socket.socketpair()
        try:
            self._process = self._started(theirs)
        except BaseException:  # such as Ctrl-C: the process ends where the socket is closed
            self._end.close()
            raise

    @staticmethod
    def _started(theirs: socket.socket) -> subprocess.Popen[bytes]:
        with theirs:
            environment = {k: v for k, v in os.environ.items() if k not in _HIDDEN}
            environment |= keep_freed_memory({}, os.environ)
            folder = str(Path(anyrig.__file__).parents[1])
            known = environment.get("PYTHONPATH")
            environment["PYTHONSAFEPATH"] = "1"  # not the folder from which the script was started
            environment["PYTHONPATH"] = os.pathsep.join([folder, *([known] if known else [])])
            return subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                # Ctrl-C in a terminal is for this process, which then ends the workers.
                start_new_session=True,
            )

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def fork(self, served: socket.socket, number: int) -> None:
        """Have a worker forked that serves a socket; do not wait for it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its loss is found later
            socket.send_fds(self._end, [REQUEST.pack(0, number)], [served.fileno()])

    def status_of(self, worker: int) -> int | None:
        """Return how a worker ended, as `subprocess` says it; None if it runs or is unknown."""
        try:
            self._end.sendall(REQUEST.pack(worker, 0))
            self._end.settimeout(2 * _END_SECONDS)
            answer = self._end.recv(STATUS.size)
            self._end.settimeout(None)
        except OSError:
            return None
        if len(answer) < STATUS.size:
            return None
        (status,) = STATUS.unpack(answer)
        return None if status == RUNS else status

    def kill(self, worker: int) -> None:
        """Kill a worker, whose end is not waited for."""
        if self.runs:  # else the worker ends by itself
            os.kill(worker, signal.SIGKILL)

    def end(self) -> None:
        """End the process and all its workers."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)  # also where a fork of this process has it
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._end.close()
