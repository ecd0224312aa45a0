"""Where each rank is when it is stopped: the line of Python, even if it hangs in C code.

::

    agent ──SIGURG──> rank      writes the stacks of its threads to a file, in C and without the GIL
          ──SIGTERM─> rank      ends as it would, by its own handler if it has one

A program that does not expect SIGURG ignores it: a rank that has not begun, or another program.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import waits

# Names the file for a rank's error, next to which the rank writes where it was.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_NAME = "stack.txt"

# As `faulthandler` and as `traceback` write it.
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+),? in (?P<function>.*)')

# Frames that are not the program's own.
_NOT_THE_PROGRAM = (
    *("/torch/", "/anyrig/", "<frozen "),
    *("/threading.py", "/runpy.py", "/contextlib.py"),
)

# A rank that waits for others has one of these frames on top of the program's own. In a backward
# pass only DistributedDataParallel waits.
_WAITS = (
    "/torch/distributed/",
    "/torch/autograd/graph.py",
    "/torch/nn/parallel/distributed.py",
    waits.__file__,
)

# How long a rank may take to write where it is: a millisecond, unless the machine is busy.
_WRITING_SECONDS = 1.0

# What `faulthandler` writes of the thread that got the signal, which comes last: down to where a
# module begins, or down to the hundredth frame.
_WHOLE = re.compile(r"^Current thread (?s:.*)( in <module>|^  \.\.\.)$\n", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """A line of the program.

    Attributes:
        line: as "train.py:31 in step".
        inside: the innermost function there, if it is not the program's own.
        waits: whether what runs there may be a wait for the other ranks.
    """

    line: str
    inside: str | None
    waits: bool


def write_place_when_stopped() -> None:
    """Have this rank write the stacks of its threads when it is about to be stopped."""
    error_file = os.environ.get(ERROR_FILE)
    if error_file is None or not hasattr(faulthandler, "register"):  # not on Windows
        return
    # Kept open for the rest of the process: the handler must not open files.
    file = Path(error_file).with_name(_NAME).open("w")
    faulthandler.register(signal.SIGURG, file=file, all_threads=True)
    _kept.append(file)


_kept: list[object] = []


def ask_for_places(ranks: Mapping[int, Path]) -> None:
    """Have ranks write where they are: their process numbers, each with its folder.

    Waits until they have, a moment at most. A process that was suspended is woken, for it could
    neither write nor end.
    """
    if not hasattr(signal, "SIGURG"):
        return
    for pid in ranks:
        _send_to_main_thread(pid, signal.SIGURG)
        _send(pid, signal.SIGCONT)
    ends = time.monotonic() + _WRITING_SECONDS
    # The file is there, and empty, from the rank's beginning.
    able = [file for folder in ranks.values() if (file := folder / _NAME).is_file()]
    while not all(_is_whole(file) for file in able) and time.monotonic() < ends:
        time.sleep(0.01)


def read_place(rank_folder: Path) -> Place | None:
    """Return where the rank whose files lie in `rank_folder` was stopped.

    None if it ended by itself, or before its Python code began.
    """
    try:
        text = (rank_folder / _NAME).read_text(errors="replace")
    except OSError:
        return None
    # The thread that got the signal is the last; its innermost frame is the first.
    main = text.rpartition("Current thread")[2] or text.rpartition("Thread")[2]
    return _place([match for line in main.splitlines() if (match := _FRAME.fullmatch(line))])


def place_of(traceback: str) -> Place | None:
    """Return the line of the program at which the exception of a traceback was raised."""
    lines = reversed(traceback.splitlines())
    return _place([match for line in lines if (match := _FRAME.fullmatch(line))])


def _place(frames: Sequence[re.Match[str]]) -> Place | None:
    """Return the place that `frames` tell, the innermost first."""
    if not frames:
        return None
    own = [i for i, frame in enumerate(frames) if not _is_any(frame["file"], _NOT_THE_PROGRAM)]
    first = own[0] if own else 0
    frame = frames[first]
    return Place(
        f"{frame['file']}:{frame['line']} in {frame['function']}",
        None if first == 0 else frames[0]["function"],
        any(_is_any(inner["file"], _WAITS) for inner in frames[:first]),
    )


def _is_any(file: str, parts: Iterable[str]) -> bool:
    return any(part in file for part in parts)


def _is_whole(file: Path) -> bool:
    """Return whether all is written; a rank that is stopped before that writes no more."""
    return _WHOLE.search(file.read_text(errors="replace")) is not None


def _send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _send_to_main_thread(pid: int, signum: signal.Signals) -> None:
    """Send a signal that no other thread of the process can take.

    When a suspended process is woken, whichever thread runs first takes a signal that was sent to
    the process, and the main thread may be somewhere else by then. Linux lets one name the thread,
    whose number is the process's: https://man7.org/linux/man-pages/man2/tgkill.2.html
    """
    if (tgkill := getattr(ctypes.CDLL(None), "tgkill", None)) is None:
        _send(pid, signum)
    else:
        tgkill(pid, pid, signum)
