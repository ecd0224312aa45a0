"""The output of a rank, a line at a time.

The launcher reads the end of a rank's log, and puts the rank's name before what it finds. torchrun
starts ranks without a buffer, so Python writes the arguments of a print one by one, and the name or
a line of another rank would come between them.
"""

from __future__ import annotations

import io
import sys


def write_whole_lines() -> None:
    """Have this process's output written when a line is complete, or when it is flushed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
