"""Refusing what would change an old file and cannot be redirected, in a shape-only rehearsal.

`redirected_files` replaces functions of Python's library. A program that took one of them by name
before, such as ``from os import replace`` above ``import torch``, still has the one that changes
files; so have some modules of the library and of NumPy. Python raises an audit event before each of
these acts, so such a call ends with an error and the file stays as it was.
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

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        touched = _touched(event, arguments)
        if touched and not scratch.is_bypassed:
            for path in touched:
                _refuse_old(scratch, path)

    sys.addaudithook(look)


def _touched(event: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the paths that an event would change."""
    if event == "open":
        path, _, flags = arguments
        if not isinstance(flags, int) or flags & _NEW == _NEW:  # which opens no file that is there
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
    # Python itself replaces what it has compiled.
    if not isinstance(path, str) or path.endswith(".pyc") or scratch.has(path):
        return
    with scratch.directly():
        is_old = scratch.was_there(path) or scratch.was_there(os.path.realpath(path))
    if is_old:
        raise PermissionError(
            errno.EPERM,
            "a shape-only rehearsal has no values to save and leaves this file as it is, and it "
            "cannot redirect this call to a copy: the function was taken from Python's library "
            "before torch was imported. Call it by its module, as in os.replace, or import torch "
            "first; or save to a new file",
            path,
        )
