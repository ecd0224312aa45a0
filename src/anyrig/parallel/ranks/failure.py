"""Why a group of ranks failed: the rank, its host, its last words, and where the others were."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from .places import read_place

# More of a file than its last lines is not looked at.
_TAIL_BYTES = 64 * 2**10

# What gloo and NCCL say when the rank at the other end has ended.
_LOST_CONNECTION = re.compile(
    r"closed by peer|reset by peer|broken pipe|remote process exited|unhandled system error",
    re.IGNORECASE,
)
_TRACEBACK = "Traceback (most recent call last):"
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)


class Ending(Enum):
    """How a rank came to its end; in the order of what to look at first."""

    MISSING = "did not come to a collective in time, and was stopped"
    KILLED = "was killed"
    FAILED = "failed"
    LEFT = "ended early, while others still waited for it"
    TIMED_OUT = "waited in vain"
    LOST_CONNECTION = "lost its connection to another rank"
    STOPPED = "was stopped"


@dataclass(frozen=True)
class RankFailure:
    """How one rank of this node ended.

    Attributes:
        rank: its number in the whole group.
        host: the machine it ran on.
        exit_code: negative for a signal.
        ending: by itself, stopped because another one failed, or stopped while others waited for it
            in vain.
        last_output: the last line that it wrote to standard output, or None.
        last_error: the same of standard error: the exception that ended it, if one did.
        place: the line of Python at which it was stopped, or None.
        folder: where its output is kept.
    """

    rank: int
    host: str
    exit_code: int
    ending: Ending
    last_output: str | None
    last_error: str | None
    place: str | None
    folder: Path

    @property
    def traceback(self) -> str | None:
        """The last traceback that it wrote, or None."""
        text = _tail(self.folder / "stderr.log")
        start = text.rfind(_TRACEBACK)
        return text[text.rfind("\n", 0, start) + 1 :].rstrip() if start >= 0 else None

    def __str__(self) -> str:
        lines = [f"rank {self.rank} on {self.host} {self.ending.value}{_code(self.exit_code)}"]
        lines += [f"  it was at {self.place}"] if self.place else []
        lines += [f"  last output: {self.last_output}"] if self.last_output else []
        lines += [f"  last error: {self.last_error}"] if self.last_error else []
        return "\n".join(lines)


@dataclass(frozen=True)
class GroupFailure:
    """Why a group failed; its text says the first failure first.

    Attributes:
        first: the rank that failed first on this node.
        others: those of this node that failed or were stopped after it.
    """

    first: RankFailure
    others: tuple[RankFailure, ...]

    def __str__(self) -> str:
        text = [str(self.first), *map(str, self.others)]
        return "\n".join([*text, f"  all output: {self.first.folder.parent}"])


def describe(failures: Mapping[int, ProcessFailure], folders: Mapping[int, Path]) -> GroupFailure:
    """Return what `failures` and the files of all ranks of this node tell, the cause first."""
    host = socket.gethostname()
    ranks = []
    for rank, folder in folders.items():
        exit_code = failures[rank].exitcode if rank in failures else 0
        last_error, place = _last_line(folder / "stderr.log"), read_place(folder)
        ranks.append(
            RankFailure(
                rank=rank,
                host=host,
                exit_code=exit_code,
                ending=_ending(exit_code, last_error, place),
                last_output=_last_line(folder / "stdout.log"),
                last_error=last_error,
                place=place,
                folder=folder,
            )
        )
    if any(rank.ending is Ending.TIMED_OUT for rank in ranks):
        ranks = [
            replace(rank, ending=Ending.MISSING) if rank.ending is Ending.STOPPED else rank
            for rank in ranks
        ]
    first, *others = sorted(ranks, key=_order)
    return GroupFailure(first, tuple(sorted(others, key=lambda other: other.rank)))


def _ending(exit_code: int, last_error: str | None, place: str | None) -> Ending:
    if place is not None or exit_code == -signal.SIGTERM:
        return Ending.STOPPED
    if exit_code <= 0:
        return Ending.KILLED if exit_code else Ending.LEFT
    if last_error is not None and _LOST_CONNECTION.search(last_error):
        return Ending.LOST_CONNECTION
    if last_error is not None and _TIMED_OUT.search(last_error):
        return Ending.TIMED_OUT
    return Ending.FAILED


def _order(rank: RankFailure) -> tuple[int, int]:
    """What sorts the cause before its consequences.

    All ends are seen within one look of the agent's, so when a rank ended cannot tell; how can.
    Of those that ended alike, who wrote first failed first.
    """
    errors = rank.folder / "stderr.log"
    written_ns = errors.stat().st_mtime_ns if errors.is_file() else 0
    return (list(Ending).index(rank.ending), written_ns)


def _last_line(file: Path) -> str | None:
    lines = _tail(file).split("\n")
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
