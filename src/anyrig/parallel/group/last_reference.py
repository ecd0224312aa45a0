"""Process groups over gloo that are left to the end of the process.

The last to let go of such a group waits for its threads, DDP's reducer with the GIL. In PyTorch
2.13 a thread of the group may wait for the GIL just then, and the process hangs: when a model dies
after `destroy_process_group`, or when Python takes modules apart. With one reference more there is
no last one; the group's two threads and its sockets stay until the process ends.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch.distributed as dist

_kept: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_until_exit(group: Any) -> None:
    """Have a process group outlive everything in this process.

    NCCL's ends without waiting for threads that need the GIL, and is left to PyTorch.
    """
    if "nccl" in dist.get_backend_config(group) or group in _kept:
        return
    _kept.add(group)
    # Not a reference of Python's own: those go when it takes modules apart, in no certain order.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
