"""What a rank prints: a line at a time, and without its own name.

The launcher shows what it finds at the end of a rank's log, with the rank's name before it. Without
a buffer, as torchrun starts them, Python writes the parts of a print one by one, and between two of
them stood the name again, or a line of another rank's.

Once there is a process group, PyTorch puts the rank before each line of a traceback, too (from 2.3
on, https://github.com/pytorch/pytorch/pull/118190; no flag turns that off).
"""

from __future__ import annotations

import io
import sys
from types import TracebackType


def write_whole_lines() -> None:
    """Have this process's output written when a line is complete, or when it is flushed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def leave_names_to_launcher() -> None:
    """Have an uncaught exception printed without the rank that PyTorch puts before each line.

    Its hook has the hook that was there before print into a buffer, and labels what it finds there.
    This one prints to the stream itself.
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
