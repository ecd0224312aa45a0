"""Refusal of writes to old files that cannot be redirected, in a shape-only rehearsal.

`redirected_files` replaces functions of Python's library. A program that imported a function by
name before, such as ``from os import replace`` above ``import torch``, still has the original, and
so do some modules of the library and of NumPy. Python raises an audit event before each such call
changes a file. The audit hook here then raises an error, and the file stays unchanged.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

from .scratch import Scratch

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND
_NEW = os.O_CREAT | os.O_EXCL


def refuse_writes(scratch: Scratch) -> None:
    """Raise PermissionError where this process would change a file from before the rehearsal.

    Python keeps an audit hook for the rest of the process.
    """

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        paths = _changed_paths(event, arguments)
        if paths and not scratch.is_bypassed:
            for path in paths:
                _refuse_old(scratch, path)

    sys.addaudithook(check)


def _changed_paths(event: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the paths that the call behind an audit event would change."""
    if event == "open":
        path, _, flags = arguments
        if not isinstance(flags, int) or flags & _NEW == _NEW:  # opens only files that do not exist
            return ()
        return (path,) if flags & _WRITES else ()
    if event == "os.rename":
        return arguments[:2] if arguments[2] == arguments[3] == -1 else ()
    if event in ("os.remove", "os.truncate"):
        return arguments[:1] if event == "os.truncate" or arguments[1] == -1 else ()
    return ()


def _refuse_old(scratch: Scratch, path: Any) -> None:
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    # Python replaces its own bytecode files.
    if not isinstance(path, str) or path.endswith(".pyc") or scratch.contains(path):
        return
    with scratch.directly():
        old = scratch.is_old(path) or scratch.is_old(os.path.realpath(path))
    if old:
        raise PermissionError(
            errno.EPERM,
            "a shape-only rehearsal has no values to save and does not change this file, and it "
            "cannot redirect this call to a copy: the function was imported by name before torch "
            "was imported. Call the function through its module, as in os.replace, import torch "
            "first, or save to a new file",
            path,
        )
