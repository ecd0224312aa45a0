"""The line of Python at which a rank is stopped, even if it hangs in C code.

::

    agent ──SIGURG──> rank      writes the stacks of its threads to a file, in C and without the GIL
          ──SIGTERM─> rank      ends as usual, by its own handler if it has one

Other programs, and a rank that has not registered its handler yet, ignore SIGURG by default.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib.util
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import waits

# The variable that names the file for a rank's error. The rank writes its stack next to that file.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_NAME = "stack.txt"

# A frame as `faulthandler` and `traceback` write it.
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+),? in (?P<function>.*)')

# A program may lie in a folder of the same name. PyTorch is found without being imported.
_TORCH = str(Path(importlib.util.find_spec("torch").origin).parent)  # type: ignore[union-attr,arg-type]

# Frames that are not the program's own.
_NOT_THE_PROGRAM = (
    *(f"{_TORCH}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}", "<frozen "),
    *("/threading.py", "/runpy.py", "/contextlib.py", "/argparse.py"),
)

# A rank that waits for others has a frame of these files inside the program's own frames. In a
# backward pass, only DistributedDataParallel waits.
_WAITS = (
    f"{_TORCH}/distributed/",
    f"{_TORCH}/autograd/graph.py",
    f"{_TORCH}/nn/parallel/distributed.py",
    waits.__file__,
)

# Writing the stack takes a millisecond, except on a busy machine.
_WRITING_SECONDS = 1.0

# The complete stack of the thread that got the signal, which `faulthandler` writes last. It ends
# with a module's frame, or with "..." after a hundred frames.
_WHOLE = re.compile(r"^Current thread (?s:.*)( in <module>|^  \.\.\.)$\n", re.MULTILINE)


@dataclass(frozen=True)
class Place:
    """A line of the program.

    Attributes:
        line: the innermost line of the program, as "train.py:31 in step".
        inside: the innermost function, if it is not the program's own.
        waits: whether that line may wait for the other ranks.
    """

    line: str
    inside: str | None
    waits: bool


def write_stack_on_request() -> None:
    """Make this rank write the stacks of its threads on SIGURG from the launcher."""
    error_file = os.environ.get(ERROR_FILE)
    if error_file is None or not hasattr(faulthandler, "register"):  # not on Windows
        return
    # The file stays open until the process ends: a signal handler must not open files.
    file = os.open(Path(error_file).with_name(_NAME), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    faulthandler.register(signal.SIGURG, file=file, all_threads=True)


def request_stacks(ranks: Mapping[int, Path]) -> None:
    """Make ranks write their stacks, and wait at most a second for the stacks.

    `ranks` maps process ids to the ranks' folders. Suspended processes are resumed, because they
    could neither write nor end.
    """
    if not hasattr(signal, "SIGURG"):
        return
    for pid in ranks:
        _send_to_main_thread(pid, signal.SIGURG)
        _send(pid, signal.SIGCONT)
    ends = time.monotonic() + _WRITING_SECONDS
    # A rank creates the empty file when it begins.
    files = [file for folder in ranks.values() if (file := folder / _NAME).is_file()]
    while not all(_is_whole(file) for file in files) and time.monotonic() < ends:
        time.sleep(0.01)


def read_place(rank_folder: Path) -> Place | None:
    """Return the place at which the rank with this folder was stopped.

    None if the rank ended by itself, or before its Python code began.
    """
    try:
        text = (rank_folder / _NAME).read_text(errors="replace")
    except OSError:
        return None
    # The thread that got the signal comes last, and its innermost frame first.
    main = text.rpartition("Current thread")[2] or text.rpartition("Thread")[2]
    return _place([match for line in main.splitlines() if (match := _FRAME.fullmatch(line))])


def place_of(traceback: str) -> Place | None:
    """Return the line of the program at which the exception of a traceback was raised."""
    lines = reversed(traceback.splitlines())
    return _place([match for line in lines if (match := _FRAME.fullmatch(line))])


def _place(frames: Sequence[re.Match[str]]) -> Place | None:
    """Return the place of a stack, whose innermost frame comes first."""
    if not frames:
        return None
    own = [
        i for i, frame in enumerate(frames) if not _contains_any(frame["file"], _NOT_THE_PROGRAM)
    ]
    first = own[0] if own else 0
    frame = frames[first]
    return Place(
        f"{frame['file']}:{frame['line']} in {frame['function']}",
        None if first == 0 else frames[0]["function"],
        any(_contains_any(inner["file"], _WAITS) for inner in frames[:first]),
    )


def _contains_any(file: str, parts: Iterable[str]) -> bool:
    return any(part in file for part in parts)


def _is_whole(file: Path) -> bool:
    """Return whether the rank has written its whole stack."""
    return _WHOLE.search(file.read_text(errors="replace")) is not None


def _send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _send_to_main_thread(pid: int, signum: signal.Signals) -> None:
    """Send a signal to the main thread of a process.

    After a suspended process is resumed, a signal to the process is handled by the first thread
    that runs, and the main thread may have continued by then. On Linux, the id of the main thread
    is the process id: https://man7.org/linux/man-pages/man2/tgkill.2.html
    """
    if (tgkill := getattr(ctypes.CDLL(None), "tgkill", None)) is None:
        _send(pid, signum)
    else:
        tgkill(pid, pid, signum)
