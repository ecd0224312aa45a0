"""Workarounds for faults of PyTorch, from 2.11 on, and for one of Python that its threads meet.

`tests/processes/test_torch_faults.py` has a test for each fault, which fails in a PyTorch version
without the fault, or once no supported version has it. The workaround can be removed when the last
faulty PyTorch version is dropped.

==========================  ======================================  ===============  =============
workaround                  fault                                   pytorch/pytorch  versions
==========================  ======================================  ===============  =============
`keep_until_exit`,          Destroying a gloo group joins its       #56297, #75097   up to 2.13:
`hold_destroyed_groups`,    threads, and DDP's reducer holds the                     2.14.1 and
`end_rank`                  GIL meanwhile. If a thread waits for                     2.15.0 have
                            the GIL at that time, the process                        no such hang
                            hangs: about one process in ten.
`_await_idle_threads`,      A C++ thread that requests the GIL      #190489          up to 2.15.0
`end_launcher`              while Python ends aborts the process                     at least
                            (up to Python 3.13).
`_await_idle_threads`       If a C++ thread requests the GIL while  python/cpython   Python up to
(before a fork)             another one forks, such as for workers  #112275          3.10.14 and
                            of a DataLoader, the child may hang.                     3.11.9
`bound_answers`             The store's client waits for an answer  no issue         up to 2.15.0
                            forever, regardless of its timeout.                      at least
`drop_rank_prefix`          Each line of a traceback is prefixed    #118190          from 2.3 to
                            with the rank, which no flag turns                       2.15.0 at
                            off.                                                     least
`NetworkRendezvous`         All attempts share the first attempt's  #135712          up to 2.15.0
                            store, which holds addresses of ranks                    at least
                            that have ended.
==========================  ======================================  ===============  =============
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import io
import os
import signal
import socket
import sys
import time
import weakref
from collections import deque
from functools import cache, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from ..process_end import INTERRUPTED, finish_program

# The number of destroyed groups to hold, more than a program destroys at once. It is bounded,
# because each group has sockets. The threads of older groups are idle by then.
_MOST_HELD = 16

# PyTorch's name for the threads that run gloo's collectives.
_THREAD_NAME = "pt_gloo_runloop"

# A thread that gets the GIL runs before the second look; further looks are for a busy machine.
_LOOK_SECONDS = 0.005
_MOST_LOOKS = 100

# The idle time before the first TCP keep-alive probe, and the interval between probes.
_PROBE_SECONDS = 2

# Later releases of Python 3.10 do not have the fault, and wait without need.
_FORKS_MAY_HANG = sys.version_info < (3, 11, 10) and hasattr(os, "register_at_fork")

_kept: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_until_exit(group: Any) -> None:
    """Keep a process group over gloo alive until the process ends.

    The group's two threads and its sockets stay alive, too. PyTorch may destroy a group over NCCL,
    which does not wait for threads that need the GIL.
    """
    import torch.distributed as dist

    if "nccl" in dist.get_backend_config(group) or group in _kept:
        return
    _await_before_forks()
    if not _kept:
        atexit.register(_await_idle_threads)
    _kept.add(group)
    # At exit, Python clears modules in no defined order; this reference is never dropped.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


@cache
def _await_before_forks() -> None:
    """Make each later fork of this process wait for gloo's threads, where the child may hang."""
    if _FORKS_MAY_HANG:
        os.register_at_fork(before=_await_idle_threads)


def _await_idle_threads() -> None:
    """Release the GIL until all threads of gloo are idle."""
    for _ in range(_MOST_LOOKS):
        before = _read_threads()
        if not before:  # a forked process has no threads of its parent
            return
        time.sleep(_LOOK_SECONDS)
        if before == _read_threads() and all(asleep for asleep, _ in before.values()):
            return


def _read_threads() -> dict[str, tuple[bool, str]]:
    """Return for each thread of gloo (is sleeping, number of voluntary context switches).

    See proc_pid_status(5). Empty on systems without /proc.
    """
    threads = {}
    for task in Path("/proc/self/task").glob("*"):
        try:
            if (task / "comm").read_text().strip() != _THREAD_NAME:
                continue
            lines = (task / "status").read_text().splitlines()
        except OSError:  # the thread has ended meanwhile
            continue
        facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        threads[task.name] = facts["State"].startswith("S"), facts["voluntary_ctxt_switches"]
    return threads


def hold_destroyed_groups() -> None:
    """Make `torch.distributed.destroy_process_group` keep the last groups that it destroys.

    This protects models that use DDP without `spread`, and so do waits before forks. The kept
    groups are not released when the rank ends, because `end_rank` does not clear modules.
    """
    import torch.distributed
    from torch.distributed import distributed_c10d

    _await_before_forks()
    destroy = distributed_c10d.destroy_process_group
    held: deque[Any] = deque(maxlen=_MOST_HELD)

    @wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        # Private: there is no public list of all groups. Destroying the default group destroys all.
        for existing in distributed_c10d._world.pg_map:
            if existing not in held and "gloo" in distributed_c10d.get_backend_config(existing):
                held.append(existing)
        destroy(group)

    distributed_c10d.destroy_process_group = destroy_process_group
    torch.distributed.destroy_process_group = destroy_process_group


def end_rank(status: int) -> NoReturn:
    """End a rank with `end_process`, or by SIGINT if Ctrl-C ended the program."""
    status = finish_program(status)
    if status == INTERRUPTED and hasattr(signal, "raise_signal"):
        # A shell script continues after status 130, but not after a command that SIGINT ended.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    os._exit(status & 0xFF)


def end_launcher(status: int) -> NoReturn:
    """End the launcher of one of several nodes: run exit handlers without waiting for threads.

    A thread of the rendezvous may wait in C++ for a lost node.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)


def bound_answers(port: int, seconds: float) -> None:
    """Make this process's connections to any node's `port` fail after `seconds` of silence.

    By default, the kernel keeps the connections for a quarter of an hour after the network was cut.
    PyTorch does not expose its sockets, so they are found by file descriptor. Does nothing on
    systems other than Linux.
    """
    import psutil

    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    options = {
        socket.TCP_USER_TIMEOUT: round(1000 * seconds),
        socket.TCP_KEEPIDLE: _PROBE_SECONDS,
        socket.TCP_KEEPINTVL: _PROBE_SECONDS,
    }
    for connection in psutil.Process().net_connections("tcp"):
        if not connection.raddr or connection.raddr.port != port:
            continue
        descriptor = connection.fd
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in options.items():
                duplicate.setsockopt(socket.IPPROTO_TCP, option, value)


def drop_rank_prefix() -> None:
    """Print uncaught exceptions without PyTorch's prefix, because the launcher names the rank.

    PyTorch's hook redirects the earlier hook's output to a buffer, and prefixes each line of the
    buffer. The hook installed here writes to the original stream instead.
    """
    show, stream = sys.excepthook, sys.stderr

    def show_unlabelled(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        buffer = sys.stderr
        if type(buffer) is io.StringIO:
            sys.stderr = stream
        try:
            show(kind, error, trace)
        finally:
            sys.stderr = buffer

    sys.excepthook = show_unlabelled
