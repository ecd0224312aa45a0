"""How one rank ended: by itself or stopped, its last words, and where it was."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..errors import OtherRankError, RankWaitError
from .places import ERROR_FILE, place_of, read_place

# What a rank writes next to its log if it ends because of other ranks.
_WAIT = "waited.json"

# How much of the end of a log is read.
_TAIL_BYTES = 64 * 2**10

# The rank's own output has it in full: CUDA's "out of memory" takes six hundred characters.
_SHOWN_CHARACTERS = 300

# An error of the group in PyTorch's words, not of something else that has connections and limits.
_OF_THE_GROUP = re.compile(r"gloo|nccl|collective|barrier|Dist(Store|Network|Backend)Error", re.I)
_TIMED_OUT = re.compile(r"timed out|time-?out", re.I)
_LOST_CONNECTION = re.compile(
    r"closed by peer|reset by peer|broken pipe|remote process exited|unhandled system error|"
    r"connection refused|connection to ranks? .* is lost|no longer connected",
    re.I,
)
# How NCCL on virtual GPUs, in an exception of PyTorch's, names those that were waited for.
_ABSENT = re.compile(r"ranks? ((?:\d+(?: \(global rank \d+\))?(?:, | and )?)+) did not take part")
_NUMBER = re.compile(r"(\d+)(?: \(global rank (\d+)\))?")
# What PyTorch puts before each line of a traceback once there is a group.
_LABEL = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
# Within the text of an exception, another process's traceback is indented.
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):", re.MULTILINE)

# The first line after a traceback's frames: "torch.distributed.DistBackendError: …"; and what the
# runtime of C++ writes before it aborts.
_UNCAUGHT_IN_C = re.compile(r"^  what\(\):  (.*)$", re.MULTILINE)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(: .*)?$")


class Ending(Enum):
    """How a rank came to its end; in the order of what to look at first."""

    MISSING = "did not come to a collective in time"
    KILLED = "was killed"
    FAILED = "failed"
    LEFT = "ended early, while others still waited for it"
    TIMED_OUT = "timed out waiting"
    LOST_CONNECTION = "lost its connection to another rank"
    FOLLOWED = "waited for the rank that failed"
    STOPPED = "was stopped"
    DONE = "had done its work"


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended.

    Attributes:
        rank: its number in the whole group.
        host: the machine it ran on.
        exit_code: negative for a signal.
        ending: what that was.
        last_output: the last line that it wrote to standard output, or None.
        last_error: the exception that ended it, else the last line of standard error, or None.
        traceback: the traceback of the exception that ended it, or None.
        place: the line of the program at which it was stopped, or raised, or None.
        inside: the innermost function there if it is not the program's own, or None.
        waits: whether it may have waited for other ranks there; None if it was not asked.
        suspended: whether it was found suspended, as by SIGSTOP.
        folder: where, on its machine, its output is kept; None if it is not.
        wrote_unix_seconds: when it last wrote to standard error.
        absent: the ranks that it waited for until its time was up, as far as it knew them.
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

    def describe(self, *, names_host: bool) -> str:
        """Return several lines: how it ended, where, and its last words."""
        suspended = "; it had been suspended (SIGSTOP)" if self.suspended else ""
        code = "" if self.ending is Ending.DONE else _code(self.exit_code)
        host = f" on {self.host}" if names_host else ""
        lines = [f"rank {self.rank}{host} {self.ending.value}{code}{suspended}"]
        inside = f", inside {self.inside}" if self.inside else ""
        lines += [f"  it was at {self.place}{inside}"] if self.place else []
        lines += [f"  last output: {_shorten(self.last_output)}"] if self.last_output else []
        lines += [f"  last error: {_shorten(self.last_error)}"] if self.last_error else []
        return "\n".join(lines)


def note_wait(error: BaseException) -> None:
    """Note for this rank's launcher whether other ranks are the cause of `error`, which ends it."""
    if isinstance(error, SystemExit) and error.code:
        error = error.__context__ or error  # what was being handled when the program left
    file = os.environ.get(ERROR_FILE)
    if file is None or not isinstance(error, (RankWaitError, OtherRankError)):
        return
    absent = error.ranks if isinstance(error, RankWaitError) else ()
    ending = Ending.TIMED_OUT if absent else Ending.LOST_CONNECTION
    if isinstance(error, OtherRankError):
        ending = Ending.FOLLOWED
    with suppress(OSError):
        Path(file).with_name(_WAIT).write_text(json.dumps([ending.name, absent]))


def _read_wait(folder: Path) -> tuple[Ending, tuple[int, ...]] | None:
    """Return what `note_wait` has written, or None if that is nothing, or incomplete."""
    with suppress(OSError, ValueError):
        ending, absent = json.loads((folder / _WAIT).read_text())
        return Ending[ending], tuple(absent)
    return None


def read_end(
    rank: int, folder: Path, exit_code: int, *, was_stopped: bool, suspended: bool
) -> RankEnd:
    """Return how a rank of this machine ended, whose files lie in `folder`.

    `was_stopped` if it was still running when the group was ended, `suspended` if it was found
    suspended then.
    """
    log = folder / "stderr.log"
    errors = _LABEL.sub("", _tail(log))
    last_error = _exception(errors) or _last_line(errors)
    asked = read_place(folder) if was_stopped else None
    traceback = _traceback(errors)
    # A rank that was asked while it raised says more by its traceback.
    raised = None if traceback is None else place_of(traceback)
    place = raised if asked is None or (raised is not None and asked.waits) else asked
    ending, absent = _read_wait(folder) or (None, _absent(last_error or ""))
    if ending is None or exit_code <= 0:
        ending = _ending(exit_code, last_error or "", was_stopped=was_stopped)
    return RankEnd(
        rank=rank,
        host=socket.gethostname(),
        exit_code=exit_code,
        ending=ending,
        last_output=_last_line(_tail(folder / "stdout.log")),
        last_error=last_error,
        traceback=traceback,
        place=None if place is None else place.line,
        inside=None if place is None else place.inside,
        waits=None if asked is None else asked.waits,
        suspended=suspended,
        folder=str(folder),
        wrote_unix_seconds=log.stat().st_mtime if log.is_file() else 0.0,
        absent=absent,
    )


def _absent(error: str) -> tuple[int, ...]:
    """Return the ranks of the whole group that an exception of virtual GPUs names."""
    found = _ABSENT.search(error)
    numbers = [] if found is None else _NUMBER.findall(found[1])
    return tuple(int(everyone or own) for own, everyone in numbers)


def _ending(exit_code: int, last_error: str, *, was_stopped: bool) -> Ending:
    by_itself = exit_code > 0 or (exit_code == -signal.SIGABRT and not was_stopped)
    if by_itself and _OF_THE_GROUP.search(last_error):
        # NCCL's watchdog ends the process by SIGABRT when the time is up.
        if _LOST_CONNECTION.search(last_error):
            return Ending.LOST_CONNECTION
        if _TIMED_OUT.search(last_error):
            return Ending.TIMED_OUT
    if was_stopped:
        return Ending.STOPPED
    if exit_code < 0:
        return Ending.KILLED
    return Ending.FAILED if exit_code else Ending.DONE


def _exception(errors: str) -> str | None:
    """Return the first line of the exception that the last traceback of `errors` ends in."""
    if uncaught := _UNCAUGHT_IN_C.findall(errors):
        return str(uncaught[-1])
    after = _TRACEBACK.split(errors)
    lines = after[-1].splitlines()[1:] if len(after) > 1 else []
    return next((line.strip() for line in lines if _EXCEPTION.match(line)), None)


def _traceback(errors: str) -> str | None:
    """Return the last traceback of `errors`, with those of the exceptions that led to it."""
    starts = [found.start() for found in _TRACEBACK.finditer(errors)]
    if not starts:
        return None
    first = len(starts) - 1
    # "The above exception was the direct cause …", or "During handling of …".
    while first > 0 and re.search(
        r"exception(:|,| was the direct)[^\n]*\n\s*$", errors[starts[first - 1] : starts[first]]
    ):
        first -= 1
    return errors[starts[first] :].rstrip()


def _shorten(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text.removesuffix(":")  # what follows it is left out
    return f"{text[:_SHOWN_CHARACTERS].rstrip()} …"


def _last_line(text: str) -> str | None:
    lines = text.split("\n")
    # A progress bar rewrites its line; what is seen is what follows the last return.
    seen = [line.rstrip("\r").rpartition("\r")[2].strip() for line in lines if line.strip()]
    return seen[-1] if seen else None


def _tail(file: Path) -> str:
    if not file.is_file() or not (size := file.stat().st_size):
        return ""
    with file.open("rb") as stream:
        stream.seek(-min(_TAIL_BYTES, size), 2)
        return stream.read().decode(errors="replace")


def _code(exit_code: int) -> str:
    if exit_code >= 0:
        return f" (exit code {exit_code})"
    try:
        return f" ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f" (signal {-exit_code})"
