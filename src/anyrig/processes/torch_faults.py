"""The faults of PyTorch that anyrig works around, up to PyTorch 2.13 at least.

`tests/processes/test_torch_faults.py` has a test for each fault, which fails once PyTorch has
mended it. The work-around can then go with the last PyTorch version that has the fault.

==========================  ===================================================  ===============
work-around                 fault                                                pytorch/pytorch
==========================  ===================================================  ===============
`keep_until_exit`,          The last reference to a gloo group joins the         #56297, #75097
`hold_destroyed_groups`,    group's threads, DDP's reducer while it holds the
`end_process`               GIL. A thread of the group may wait for the GIL
                            just then: about one process in ten hangs.
`_let_threads_rest`,        A C++ thread that asks for the GIL while Python      #190489
`end_launcher`              ends aborts the process (up to Python 3.13).
`bound_answers`             The store's client waits for an answer without end,  no issue
                            whatever its timeout is.
`leave_names_to_launcher`   Each line of a traceback gets the rank as prefix,    #118190
                            which no flag turns off (from 2.3 on).
`NetworkRendezvous`         All attempts share the first attempt's store, which  #135712
                            has addresses where nothing listens any more.
==========================  ===================================================  ===============
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections import deque
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

# Groups to hold: more than are destroyed together. Each has sockets, so the number is bounded; the
# threads of a group that this many followed have long come to rest.
_MOST_HELD = 16

# PyTorch's name for the threads that run gloo's collectives.
_THREAD_NAME = "pt_gloo_runloop"

# A thread that gets the GIL runs within the first look; the other looks are for a busy machine.
_LOOK_SECONDS = 0.005
_MOST_LOOKS = 100

# The exit status, as a shell reports it, of a process that Ctrl-C ended.
_INTERRUPTED = 128 + signal.SIGINT

# From the sending of a segment, or of a probe of an idle connection, to the error.
_PROBE_SECONDS = 2

_kept: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_until_exit(group: Any) -> None:
    """Keep a process group over gloo alive until the process ends.

    Its two threads and its sockets stay as long. A group over NCCL ends without waiting for threads
    that need the GIL, and is left to PyTorch.
    """
    import torch.distributed as dist

    if "nccl" in dist.get_backend_config(group) or group in _kept:
        return
    if not _kept:
        atexit.register(_let_threads_rest)
    _kept.add(group)
    # Python drops its own references in no defined order when it takes modules apart.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _let_threads_rest() -> None:
    """Release the GIL until all threads of gloo sleep."""
    for _ in range(_MOST_LOOKS):
        before = _read_threads()
        time.sleep(_LOOK_SECONDS)
        if before == _read_threads() and all(asleep for asleep, _ in before.values()):
            return


def _read_threads() -> dict[str, tuple[bool, str]]:
    """Return, for each thread of gloo, whether it sleeps and how often it has gone to sleep.

    See proc_pid_status(5). Empty on systems that have no such files.
    """
    threads = {}
    for task in Path("/proc/self/task").glob("*"):
        try:
            if (task / "comm").read_text().strip() != _THREAD_NAME:
                continue
            lines = (task / "status").read_text().splitlines()
        except OSError:  # it has ended meanwhile
            continue
        facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        threads[task.name] = facts["State"].startswith("S"), facts["voluntary_ctxt_switches"]
    return threads


def hold_destroyed_groups() -> None:
    """Have `torch.distributed.destroy_process_group` hold the last groups that it destroys.

    For the ranks' models that `spread` did not make. A rank never releases the groups that are held
    when it ends, since `end_process` does not take modules apart.
    """
    import torch.distributed
    from torch.distributed import distributed_c10d

    destroy = distributed_c10d.destroy_process_group
    held: deque[Any] = deque(maxlen=_MOST_HELD)

    @wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        # Private: there is no public list of all groups. Destroying the default group destroys all.
        for each in distributed_c10d._world.pg_map:
            if each not in held and "gloo" in distributed_c10d.get_backend_config(each):
                held.append(each)
        destroy(group)

    distributed_c10d.destroy_process_group = destroy_process_group
    torch.distributed.destroy_process_group = destroy_process_group


def end_process(status: int) -> NoReturn:
    """End a rank as the interpreter does, except that Python does not take modules apart.

    Wait for threads, then run exit handlers, in the order of Py_FinalizeEx, then write out the
    files that the program left open. `multiprocessing` ends its children in the same way.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _write_out_files()
    if status == _INTERRUPTED and hasattr(signal, "raise_signal"):
        # A shell decides by the signal, not by the status, whether to go on with a script.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    os._exit(status & 0xFF)


def end_launcher(status: int) -> NoReturn:
    """End the launcher of one of several nodes: run exit handlers, and wait for no thread.

    A thread of the rendezvous may wait in C++ for a node that has gone.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)


def _write_out_files() -> None:
    """Write out what open files hold in memory, the outermost first; close compressed files."""
    # By type(), since `isinstance` asks an object for its class, which runs code of some objects;
    # and by the base class in C, since asking an ABC is slow for hundreds of thousands of objects.
    (base,) = io.IOBase.__bases__
    files = [each for each in gc.get_objects() if issubclass(type(each), base)]
    texts = [each for each in files if isinstance(each, io.TextIOWrapper)]
    buffers = [each for each in files if isinstance(each, (io.BufferedWriter, io.BufferedRandom))]
    written_in_python = [each for each in files if type(each).__module__ != "_io"]  # as GzipFile
    for finish in [
        *(text.flush for text in [sys.stdout, sys.stderr, *texts] if text is not None),
        *(file.close for file in written_in_python),
        *(buffer.flush for buffer in buffers),
    ]:
        # The file or the other end of the pipe may be closed, or the object half constructed.
        with contextlib.suppress(Exception):
            finish()


def bound_answers(port: int, seconds: float) -> None:
    """Have this process's connections to any node's `port` fail after `seconds` of silence.

    When the network is cut, the kernel would keep them for a quarter of an hour. The option belongs
    to the socket, which PyTorch does not expose. Does nothing on systems other than Linux.
    """
    import psutil

    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    options = {
        socket.TCP_USER_TIMEOUT: round(1000 * seconds),
        socket.TCP_KEEPIDLE: _PROBE_SECONDS,
        socket.TCP_KEEPINTVL: _PROBE_SECONDS,
    }
    for each in psutil.Process().net_connections("tcp"):
        if not each.raddr or each.raddr.port != port:
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in options.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


def leave_names_to_launcher() -> None:
    """Have an uncaught exception printed without PyTorch's prefix: the launcher names the rank.

    PyTorch's hook has the earlier hook print into a buffer, and prefixes the lines of the buffer.
    The hook installed here prints to the stream itself.
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
