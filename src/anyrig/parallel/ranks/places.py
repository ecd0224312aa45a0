"""Where each rank was when it was stopped: the Python line, also of one that hangs in C code."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from pathlib import Path

# The agent names a file for a rank's error; beside it lies where the rank was.
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_NAME = "stack.txt"

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')

# Frames that tell nothing of the program: where a rank waits is always in one of these.
_NOT_THE_PROGRAM = ("/torch/", "/anyrig/", "<frozen ", "/threading.py", "/runpy.py")


def write_place_when_stopped() -> None:
    """Have this rank write its threads' stacks when it is sent SIGTERM, and then end as it would.

    The stacks are written by C code that needs no GIL, so a rank that hangs in a collective writes
    them too.
    """
    error_file = os.environ.get(_ERROR_FILE)
    if error_file is None or not hasattr(faulthandler, "register"):  # not on Windows
        return
    # Kept open for the rest of the process: the handler must not open files.
    file = Path(error_file).with_name(_NAME).open("w")
    faulthandler.register(signal.SIGTERM, file=file, all_threads=True, chain=True)
    _kept.append(file)


_kept: list[object] = []


def read_place(rank_folder: Path) -> str | None:
    """Return where the rank whose files lie in `rank_folder` was stopped, as "train.py:31 in step".

    None if it ended by itself, or before its Python code began.
    """
    try:
        text = (rank_folder / _NAME).read_text(errors="replace")
    except OSError:
        return None
    # The thread that got the signal is the last; its innermost frame is the first.
    main = text.rpartition("Current thread")[2] or text.rpartition("Thread")[2]
    frames = [match for line in main.splitlines() if (match := _FRAME.fullmatch(line))]
    own = [frame for frame in frames if not any(part in frame["file"] for part in _NOT_THE_PROGRAM)]
    if not frames:
        return None
    frame = (own or frames)[0]
    inside = "" if frame is frames[0] else f", inside {frames[0]['function']}"
    return f"{frame['file']}:{frame['line']} in {frame['function']}{inside}"
