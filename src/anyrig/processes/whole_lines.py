"""Line buffering for the output of a rank.

The launcher follows a rank's log and shows new text with the rank's name as prefix. torchrun starts
ranks unbuffered, so Python writes the arguments of a print one by one. The prefix, or a line of
another rank, could then appear within a line.
"""

from __future__ import annotations

import io
import sys


def write_whole_lines() -> None:
    """Make this process write its output line by line, or when it is flushed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
