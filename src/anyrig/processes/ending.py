"""How a rank ends when its program has, and a launcher when its ranks have: surely.

Two faults of PyTorch, up to 2.13 at least. Where Python takes modules apart, one rank in ten hangs
after DDP over gloo: a destructor that holds the GIL joins a thread that waits for it
(https://github.com/pytorch/pytorch/issues/56297). And a thread of PyTorch's that asks for the GIL
after that, such as the rendezvous's, which waits in C++ for a node that has gone, aborts a process
that has succeeded (https://github.com/pytorch/pytorch/issues/190489). See
`tests/processes/test_torch_faults.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
from typing import NoReturn

# Of one that Ctrl-C ended, as a shell reports it.
_INTERRUPTED = 128 + signal.SIGINT


def end_process(status: int) -> NoReturn:
    """End as the interpreter does, but for taking modules apart.

    Threads are waited for and exit handlers run, in the order of Py_FinalizeEx; `multiprocessing`
    ends its children in the same way. Files that the program left open get what it wrote to them.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _finish_files()
    if status == _INTERRUPTED and hasattr(signal, "raise_signal"):
        # A shell goes by this, not by the status, when it decides whether to go on with a script.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    os._exit(status & 0xFF)


def end_launcher(status: int) -> NoReturn:
    """End the launcher of one of several nodes: exit handlers run, and no thread is waited for."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)


def _finish_files() -> None:
    """Write out what files hold back, the outermost first; compressed ones get their ends."""
    # By type(), for `isinstance` asks an object for its class, and some make things when asked; and
    # by the base in C, for there are hundreds of thousands of objects, and asking an ABC is slow.
    (base,) = io.IOBase.__bases__
    files = [each for each in gc.get_objects() if issubclass(type(each), base)]
    texts = [each for each in files if isinstance(each, io.TextIOWrapper)]
    buffers = (io.BufferedWriter, io.BufferedRandom)
    flushed = [each for each in files if isinstance(each, buffers)]
    # Classes written in Python, such as GzipFile. What is not in a buffer needs nothing.
    closed = [each for each in files if type(each).__module__ != "_io"]
    for finish in [
        *(text.flush for text in [sys.stdout, sys.stderr, *texts] if text is not None),
        *(file.close for file in closed),
        *(buffer.flush for buffer in flushed),
    ]:
        # Closed by the program, or the other end of the pipe is; or a class that is half made.
        with contextlib.suppress(Exception):
            finish()
