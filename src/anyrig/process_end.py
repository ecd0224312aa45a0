"""How anyrig ends its processes: as the interpreter does, but without finalizing the interpreter.

::

    Py_FinalizeEx                            `end_process`
    waits for threads                        the same
    runs Python's exit handlers              the same
    clears all modules, collects garbage     calls `release`
    flushes stdout and stderr                flushes all open files
    exit(): C++'s exit handlers, C's stdout  flushes C's stdout

After an import of torch, clearing modules and the three garbage collections of the interpreter's
end take half a second. `gc.freeze` would shorten them, but extensions look at their objects in the
midst of it: nanobind's, such as Triton's, print each object that is still alive. C++'s exit
handlers do not run, because PyTorch's would destroy what the live interpreter still holds, and wait
for threads that need the GIL. `multiprocessing` ends its child processes in the same way.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, FunctionType, ModuleType
from typing import NoReturn

# The exit status, as a shell reports it, of a process that Ctrl-C ended.
INTERRUPTED = 128 + signal.SIGINT

# Objects that destructors use, and that have none themselves.
_WITHOUT_END = (FunctionType, ModuleType, type, int, float, str, bytes)


def end_process(status: int, release: Callable[[], object] | None = None) -> NoReturn:
    """End this process; call `release` after the exit handlers."""
    os._exit(finish_program(status, release) & 0xFF)


def finish_program(status: int, release: Callable[[], object] | None = None) -> int:
    """Wait for threads, run exit handlers and `release`, and flush the files that are left open.

    Returns:
        `status`, or `INTERRUPTED` after Ctrl-C, which ends the wait.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except KeyboardInterrupt:
        status = INTERRUPTED
    atexit._run_exitfuncs()
    if release is not None:
        release()
    _flush_files()
    _flush_output_of_c()
    return status


def release_objects_of_program() -> None:
    """Release the objects that the main module names, the last one first.

    Their destructors find the functions, classes, modules and constants of the program, as at the
    interpreter's end. Call this after the exit handlers, which may need the objects.
    """
    names = vars(sys.modules["__main__"])
    for name in reversed([*names]):
        if not name.startswith("__") and not issubclass(type(names.get(name)), _WITHOUT_END):
            names[name] = None


def is_outermost(frame: FrameType) -> bool:
    """Return whether nothing runs after `frame`: no profiler, debugger or test has called it."""
    caller = frame.f_back
    while caller is not None and caller.f_globals.get("__name__") == "runpy":
        caller = caller.f_back
    return caller is None


def _flush_files() -> None:
    """Flush the buffers of all open files, the outermost layer first; close compressed files."""
    # `isinstance` would run the code of proxy objects with a `__class__` property, and a check of
    # the ABC `io.IOBase` would be slow for hundreds of thousands of objects. So check the C base
    # class.
    gc.unfreeze()  # `gc.get_objects` leaves out what is frozen
    (base,) = io.IOBase.__bases__
    files = [item for item in gc.get_objects() if issubclass(type(item), base)]
    texts = [file for file in files if isinstance(file, io.TextIOWrapper)]
    buffers = [file for file in files if isinstance(file, (io.BufferedWriter, io.BufferedRandom))]
    written_in_python = [file for file in files if type(file).__module__ != "_io"]  # e.g. GzipFile
    for finish in [
        *(text.flush for text in [sys.stdout, sys.stderr, *texts] if text is not None),
        *(file.close for file in written_in_python),
        *(buffer.flush for buffer in buffers),
    ]:
        # The file or the other end of the pipe may be closed, or the object partly constructed.
        with contextlib.suppress(Exception):
            finish()


def _flush_output_of_c() -> None:
    # Only this stream: to flush all of them would wait for a thread that reads from one.
    name = "__stdoutp" if sys.platform == "darwin" else "stdout"
    with contextlib.suppress(Exception):
        library = ctypes.CDLL(None)
        library.fflush(ctypes.c_void_p.in_dll(library, name))
