"""Process groups over gloo that are left to the end of the process.

The last to let go of such a group waits for its threads, DDP's reducer with the GIL. In PyTorch
2.13 that is when Python takes modules apart; a thread that asks for the GIL then does not get it,
and the process hangs. With one reference more there is no last one.
"""

from __future__ import annotations

import atexit
import ctypes
import weakref
from typing import Any

import torch.distributed as dist

_kept: weakref.WeakSet[Any] = weakref.WeakSet()


def keep_until_exit(group: Any) -> None:
    """Have a process group outlive the interpreter, if it is there when the interpreter ends.

    NCCL's ends without waiting for threads that need the GIL, and is left to PyTorch.
    """
    if "nccl" in dist.get_backend_config(group):
        return
    if not _kept:
        atexit.register(_keep)
    _kept.add(group)


def _keep() -> None:
    for group in _kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
