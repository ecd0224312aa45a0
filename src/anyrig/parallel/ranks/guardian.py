"""The process that sees to it that a group of ranks ends, whatever becomes of its launcher.

::

    launcher ──pipe──> guardian            "watch 4711", "end 2.5"; closed when the launcher dies
       │
       └──starts──> ranks 4711, 4712 …     each in a session of its own, with its own children

The guardian kills every session it watches when the launcher is gone, also by SIGKILL, or when the
ranks have not ended in the seconds they were given. Then it removes the folders that nobody is to
find. It imports nothing but the standard library, so that it costs a few MiB and some 20 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Guardian"]


class Guardian:
    """The launcher's end of the pipe. Use it as a context manager."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        # Of its own session, so that Ctrl-C in the terminal does not end it before the ranks.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, cwd="/"
        )

    def watch(self, leader_pid: int) -> None:
        """Have the session that `leader_pid` leads ended with this process."""
        self._tell(f"watch {leader_pid}")

    def end(self, seconds: float) -> None:
        """Have all that is watched killed in `seconds`, if it has not ended by then."""
        self._tell(f"end {seconds}")

    def clear(self) -> None:
        """Kill what is left of all that is watched, and watch it no more: a new start comes."""
        self._tell("clear")

    def remove(self, folder: Path) -> None:
        """Have `folder` removed at the end."""
        self._tell(f"remove {folder}")

    def keep(self, folder: Path) -> None:
        """Do not have `folder` removed after all."""
        self._tell(f"keep {folder}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(os.fsencode(f"{line}\n"))
            self._process.stdin.flush()

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipe and wait; whatever is watched and has not ended is killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def _guard(pipe: int) -> None:
    watched: set[int] = set()
    folders: set[str] = set()
    deadline: float | None = None
    rest = b""
    while True:
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([pipe], [], [], seconds)[0]:
            _kill(watched)
            deadline = None
            continue
        read = os.read(pipe, 4096)
        if not read:  # closed: the launcher has ended, in whatever way
            break
        *lines, rest = (rest + read).split(b"\n")
        for word, _, value in (os.fsdecode(line).partition(" ") for line in lines):
            if word == "watch":
                watched.add(int(value))
            elif word == "end":
                ends = time.monotonic() + float(value)
                deadline = ends if deadline is None else min(deadline, ends)
            elif word == "remove":
                folders.add(value)
            elif word == "keep":
                folders.discard(value)
            else:
                _kill(watched)
                watched.clear()
                deadline = None
    _kill(watched)
    if folders:
        import shutil

        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _kill(leaders: set[int]) -> None:
    """Kill every process of the sessions that `leaders` lead, until none is left to be found."""
    # While any member of a session lives, its number is given to no new process. Between the end
    # of the last one and this line it could be, if all numbers had been used up in the meantime.
    for _ in range(20):
        members = _members(leaders)
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            return
        time.sleep(0.01)  # one that was being forked meanwhile is found the next time


def _members(leaders: set[int]) -> list[int]:
    """Return the living processes of sessions; a process group of its own is no way out of one."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112, PTH208
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - pathlib takes a while to import
                state, _parent, _group, session = file.read().rpartition(")")[2].split()[:4]
            if int(session) in leaders and state not in "ZX":
                found.append(pid)
    if not os.path.isdir("/proc/self"):  # noqa: PTH112 - macOS: their process groups must do
        for leader in leaders:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)
    return found


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    _guard(sys.stdin.fileno())
