"""How a rank ended: its exit code, its last output and error, and its line of the program."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from ..errors import OtherRankError, RankWaitError
from .last_line import last_line, last_line_before_warnings
from .places import ERROR_FILE, place_of, read_place

# The file, next to its log, in which a rank notes the exception that ends it.
_NOTE = "exception.json"

# The number of bytes to read from the end of a log.
_TAIL_BYTES = 64 * 2**10

# Longer errors, such as CUDA's "out of memory", are cut; the rank's own output has them in full.
_SHOWN_CHARACTERS = 300

# PyTorch's words in errors of collectives. Errors of a program's own connections do not match.
_OF_THE_GROUP = re.compile(r"gloo|nccl|collective|barrier|Dist(Store|Network|Backend)Error", re.I)
_TIMED_OUT = re.compile(r"timed out|time-?out", re.I)
_LOST_CONNECTION = re.compile(
    r"closed by peer|reset by peer|broken pipe|remote process exited|unhandled system error|"
    r"connection refused|connection to ranks? .* is lost|no longer connected",
    re.I,
)
# How the NCCL of virtual GPUs names the ranks that did not take part.
_ABSENT = re.compile(r"ranks? ((?:\d+(?: \(global rank \d+\))?(?:, | and )?)+) did not take part")
_NUMBER = re.compile(r"(\d+)(?: \(global rank (\d+)\))?")
# What the C++ runtime writes before it aborts the process.
_ABORTED = re.compile(r"^  what\(\):  (.*)$", re.MULTILINE)


class Ending(Enum):
    """How a rank ended; likely causes come before their consequences."""

    MISSING = "did not reach a collective in time"
    KILLED = "was killed"
    FAILED = "failed"
    LEFT = "ended early, while other ranks still waited for it"
    TIMED_OUT = "timed out waiting"
    LOST_CONNECTION = "lost its connection to another rank"
    FOLLOWED = "waited for the rank that failed"
    STOPPED = "was stopped"
    DONE = "had succeeded"


@dataclass
class _Note:
    """A rank's record of the exception that ends it, with fields of `RankEnd`."""

    ending: str | None = None  # the name of an `Ending` that other ranks caused
    absent: Sequence[int] = ()
    error: str | None = None
    traceback: str | None = None
    explanation: str | None = None
    exit_place: str | None = None  # of a `SystemExit` other than of success
    exit_words: str | None = None


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended.

    Attributes:
        rank: the global rank.
        host: the rank's node.
        exit_code: the exit code of the process; the negative number of a signal that ended it.
        ending: the kind of ending.
        last_output: the last line of standard output, or None.
        last_error: the exception that ended the rank, else the last line of standard error that is
            no warning of Python, or
            None.
        traceback: the traceback of that exception, or None.
        place: the line of the program at which the rank was stopped or raised, or None.
        inside: the innermost function at `place` if it is not the program's own, or None.
        waits: whether the rank may have waited for other ranks there; None if it wrote no stack.
        suspended: whether the rank was suspended, for example by SIGSTOP.
        folder: the folder on its node with its output; None if the output is not kept.
        wrote_unix_seconds: when the rank last wrote to standard error.
        absent: the ranks that this rank waited for until its time limit, if known.
        explanation: several lines of text about the exception, such as what filled the memory of a
            device; None if there is none.
        exit_words: the call by which the rank ended itself, such as ``sys.exit(1)``; None if it
            ended otherwise.
    """

    rank: int
    host: str
    exit_code: int
    ending: Ending
    last_output: str | None
    last_error: str | None
    traceback: str | None
    place: str | None
    inside: str | None
    waits: bool | None
    suspended: bool
    folder: str | None
    wrote_unix_seconds: float = 0.0
    absent: tuple[int, ...] = ()
    explanation: str | None = None
    exit_words: str | None = None

    def describe(self, *, names_host: bool, explains: bool = False) -> str:
        """Return some lines of text: how the rank ended, where, its last output and error.

        With `explains`, the explanation of the exception follows.
        """
        suspended = "; it had been suspended (SIGSTOP)" if self.suspended else ""
        code = "" if self.ending is Ending.DONE else _format_code(self.exit_code)
        host = f" on {self.host}" if names_host else ""
        lines = [f"rank {self.rank}{host} {self.ending.value}{code}{suspended}"]
        if self.exit_words is not None:
            at = f" at {self.place}" if self.place else ""
            lines += [f"  it ended itself{at}: {_shorten(self.exit_words)}"]
        inside = f", inside {self.inside}" if self.inside else ""
        lines += [f"  it was at {self.place}{inside}"] if self.place and not self.exit_words else []
        lines += [f"  last output: {_shorten(self.last_output)}"] if self.last_output else []
        title = "last error" if self.exit_words is None else "last line of standard error"
        lines += [f"  {title}: {_shorten(self.last_error)}"] if self.last_error else []
        if explains and self.explanation is not None:
            lines += [f"  {line}".rstrip() for line in self.explanation.splitlines()]
        return "\n".join(lines)


def note_exception(error: BaseException, explanation: str | None = None) -> bool:
    """Write the exception that ends this rank to a file for the launcher.

    Args:
        error: the exception.
        explanation: a text about the exception, which the launcher prints if this rank caused the
            failure of the group.

    Returns:
        whether the note was written; False in a process without a launcher.
    """
    file = os.environ.get(ERROR_FILE)
    if file is None:
        return False
    cause: BaseException | None = error
    note = _Note(explanation=None if explanation is None else explanation[:_TAIL_BYTES])
    if isinstance(error, SystemExit):
        cause = error.__context__ if error.code else None  # the exception that the program handled
        if error.code:
            left = place_of("".join(traceback.format_exception(error)))
            note.exit_place = None if left is None else left.line
            note.exit_words = f"sys.exit({error.code!r})"[:_TAIL_BYTES]
    else:
        lines = traceback.TracebackException.from_exception(error).format_exception_only()
        # A SyntaxError begins with indented lines of the program.
        first = next(line for line in lines if not line.startswith(" "))
        note.error = first.partition("\n")[0][:_TAIL_BYTES]
        note.traceback = "".join(traceback.format_exception(error)).rstrip()[-_TAIL_BYTES:]
    if isinstance(cause, RankWaitError):
        note.absent = tuple(cause.ranks)
        note.ending = (Ending.TIMED_OUT if cause.ranks else Ending.LOST_CONNECTION).name
    elif isinstance(cause, OtherRankError):
        note.ending = Ending.FOLLOWED.name
    with suppress(OSError):
        Path(file).with_name(_NOTE).write_text(json.dumps(asdict(note)))
        return True
    return False


def _read_note(folder: Path) -> _Note:
    """Return the note that `note_exception` wrote; an empty note if it is missing or incomplete."""
    with suppress(OSError, ValueError, TypeError):
        return _Note(**json.loads((folder / _NOTE).read_text()))
    return _Note()


def read_end(
    rank: int, folder: Path, exit_code: int, *, was_stopped: bool, suspended: bool
) -> RankEnd:
    """Return how a rank of this node ended.

    Args:
        rank: the global rank.
        folder: the folder with the rank's log files.
        exit_code: the exit code of its process.
        was_stopped: whether the rank was still running when the group was ended.
        suspended: whether the rank was suspended at that time.
    """
    log, note = folder / "stderr.log", _read_note(folder)
    errors = _tail(log)
    aborted = _ABORTED.findall(errors)
    written = last_line_before_warnings(errors)
    last_error = aborted[-1] if aborted else note.error or written
    stopped = read_place(folder) if was_stopped else None
    # If the rank raised while it waited for others, its traceback is more exact than its stack.
    raised = None if note.traceback is None else place_of(note.traceback)
    place = raised if stopped is None or (raised is not None and stopped.waits) else stopped
    if note.ending is not None and note.ending in Ending.__members__ and exit_code > 0:
        ending, absent = Ending[note.ending], tuple(note.absent)
    else:
        ending = _ending(exit_code, last_error or "", was_stopped=was_stopped)
        absent = _absent_ranks(last_error or "")
    return RankEnd(
        rank=rank,
        host=socket.gethostname(),
        exit_code=exit_code,
        ending=ending,
        last_output=last_line(_tail(folder / "stdout.log")),
        last_error=last_error,
        traceback=note.traceback,
        place=note.exit_place if place is None else place.line,
        inside=None if place is None else place.inside,
        waits=None if stopped is None else stopped.waits,
        suspended=suspended,
        folder=str(folder),
        wrote_unix_seconds=log.stat().st_mtime if log.is_file() else 0.0,
        absent=absent,
        explanation=note.explanation,
        exit_words=note.exit_words if stopped is None else None,
    )


def _absent_ranks(error: str) -> tuple[int, ...]:
    """Return the global ranks that an exception of virtual GPUs names."""
    found = _ABSENT.search(error)
    numbers = [] if found is None else _NUMBER.findall(found[1])
    return tuple(int(global_rank or rank) for rank, global_rank in numbers)


def _ending(exit_code: int, last_error: str, *, was_stopped: bool) -> Ending:
    by_itself = exit_code > 0 or (exit_code == -signal.SIGABRT and not was_stopped)
    if by_itself and _OF_THE_GROUP.search(last_error):
        # NCCL's watchdog aborts the process at its time limit.
        if _LOST_CONNECTION.search(last_error):
            return Ending.LOST_CONNECTION
        if _TIMED_OUT.search(last_error):
            return Ending.TIMED_OUT
    if was_stopped:
        return Ending.STOPPED
    if exit_code < 0:
        return Ending.KILLED
    return Ending.FAILED if exit_code else Ending.DONE


def _shorten(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text.removesuffix(":")  # the lines that follow are not shown
    return f"{text[:_SHOWN_CHARACTERS].rstrip()} …"


def _tail(file: Path) -> str:
    if not file.is_file() or not (size := file.stat().st_size):
        return ""
    with file.open("rb") as stream:
        stream.seek(-min(_TAIL_BYTES, size), 2)
        return stream.read().decode(errors="replace")


def _format_code(exit_code: int) -> str:
    if exit_code >= 0:
        return f" (exit code {exit_code})"
    try:
        return f" ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f" (signal {-exit_code})"
