"""Process groups over gloo that are left to the end of the process.

For https://github.com/pytorch/pytorch/issues/56297 and 190489, open in PyTorch 2.13;
`tests/processes/test_torch_faults.py` fails when they may be mended.

The last to let go of such a group waits for its threads, DDP's reducer with the GIL. In PyTorch
2.13 a thread of the group may wait for the GIL just then, and the process hangs: when a model dies
after `destroy_process_group`, or when Python takes modules apart. With one reference more there is
no last one; the group's two threads and its sockets stay until the process ends.

A thread that lets go of a collective's last tensor while Python ends takes the process with it: up
to Python 3.13 whoever asks for the GIL then is ended, which C++ answers with an abort. So Python
waits for these threads to come to rest before it ends.
"""

from __future__ import annotations

import atexit
import ctypes
import time
import weakref
from pathlib import Path
from typing import Any

import torch.distributed as dist

# What PyTorch calls the threads that run gloo's collectives.
_THREAD_NAME = "pt_gloo_runloop"

# A thread that is given the GIL moves within the first; the rest is for a busy machine.
_LOOK_SECONDS = 0.005
_MOST_LOOKS = 100

_kept: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_until_exit(group: Any) -> None:
    """Have a process group outlive everything in this process.

    NCCL's ends without waiting for threads that need the GIL, and is left to PyTorch.
    """
    if "nccl" in dist.get_backend_config(group) or group in _kept:
        return
    if not _kept:
        atexit.register(_let_threads_rest)
    _kept.add(group)
    # Not a reference of Python's own: those go when it takes modules apart, in no certain order.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _let_threads_rest() -> None:
    """Leave the GIL to the threads of gloo until none of them moves any more."""
    for _ in range(_MOST_LOOKS):
        before = _moves_of_threads()
        time.sleep(_LOOK_SECONDS)
        if before == _moves_of_threads() and all(asleep for asleep, _ in before.values()):
            return


def _moves_of_threads() -> dict[str, tuple[bool, str]]:
    """Return, for each thread of gloo, whether it sleeps and how often it has done so.

    See proc_pid_status(5). Empty where the system has no such files.
    """
    moves = {}
    for task in Path("/proc/self/task").glob("*"):
        try:
            if (task / "comm").read_text().strip() != _THREAD_NAME:
                continue
            lines = (task / "status").read_text().splitlines()
        except OSError:  # it has ended meanwhile
            continue
        facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        moves[task.name] = facts["State"].startswith("S"), facts["voluntary_ctxt_switches"]
    return moves
