"""What a rank prints, a line at a time.

The launcher shows what it finds at the end of a rank's log, with the rank's name before it. Without
a buffer, as torchrun starts them, Python writes the parts of a print one by one, and between two of
them stood the name again, or a line of another rank's.
"""

from __future__ import annotations

import io
import sys


def write_whole_lines() -> None:
    """Have this process's output written when a line is complete, or when it is flushed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
