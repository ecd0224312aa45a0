"""Process groups over gloo that are kept alive until the process ends.

Works around https://github.com/pytorch/pytorch/issues/56297 and 190489, open in PyTorch 2.13;
`tests/parallel/test_torch_faults.py` fails once they may be fixed.

Dropping the last reference to such a group joins its threads. DDP's reducer does so with the GIL
held. In PyTorch 2.13 a thread of the group may wait for the GIL at that moment, and the process
hangs: when a model is freed after `destroy_process_group`, or when Python clears its modules. So
`keep_until_exit` takes a reference that is never dropped. The group's two threads and its sockets
stay until the process ends.

A thread that drops a collective's last tensor while Python shuts down aborts the process: up to
Python 3.13, a thread that requests the GIL then is ended, which C++ answers with an abort. So an
exit handler waits until these threads are idle.
"""

from __future__ import annotations

import atexit
import ctypes
import time
import weakref
from pathlib import Path
from typing import Any

import torch.distributed as dist

# The name that PyTorch gives to the threads that run gloo's collectives.
_THREAD_NAME = "pt_gloo_runloop"

# A thread that can have the GIL moves within one pause; the other pauses are for a busy node.
_PAUSE_SECONDS = 0.005
_MOST_PAUSES = 100

_kept: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_until_exit(group: Any) -> None:
    """Keep a process group alive until the process ends.

    Groups over NCCL are left to PyTorch: they do not wait for threads that need the GIL.
    """
    if "nccl" in dist.get_backend_config(group) or group in _kept:
        return
    if not _kept:
        atexit.register(_wait_for_threads)
    _kept.add(group)
    # Python drops its own references when it clears modules, in no certain order.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _wait_for_threads() -> None:
    """Release the GIL until gloo's threads are idle."""
    for _ in range(_MOST_PAUSES):
        before = _states_of_threads()
        time.sleep(_PAUSE_SECONDS)
        if before == _states_of_threads() and all(asleep for asleep, _ in before.values()):
            return


def _states_of_threads() -> dict[str, tuple[bool, str]]:
    """Return, for each thread of gloo, whether it sleeps, and its voluntary context switches.

    See proc_pid_status(5). Empty on systems without these files.
    """
    states = {}
    for task in Path("/proc/self/task").glob("*"):
        try:
            if (task / "comm").read_text().strip() != _THREAD_NAME:
                continue
            lines = (task / "status").read_text().splitlines()
        except OSError:  # the thread has ended
            continue
        facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        states[task.name] = facts["State"].startswith("S"), facts["voluntary_ctxt_switches"]
    return states
