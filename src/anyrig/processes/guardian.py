"""The process that makes sure that a group of ranks ends, whatever becomes of its launcher.

::

    launcher ──pipe──> guardian            "expect …", "watch 4711 START"; closed when it dies
       │
       └──starts──> ranks 4711, 4712 …     each in a session of its own, with its own children

The guardian kills every session it watches when the launcher is gone, also by SIGKILL, or when the
ranks have not ended in the seconds they were given. While ranks are being started, the launcher
does not know their process numbers; if it ends then, the guardian finds the ranks by a variable in
their environment. At the end it removes temporary folders.
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

if __name__ == "__main__":  # without `site`, to be small and quick; so psutil has to be found
    sys.path.append(sys.argv[1])

import psutil  # noqa: E402

__all__ = ["Guardian"]

# How often to look for what is left of a session whose leader has ended.
_LOOK_SECONDS = 1.0

# How long to look for ranks that a launcher was starting when it ended: a forked process shows its
# variables only when it has become the rank's program.
_SEARCH_SECONDS = 1.0

# The kernel notes in clock ticks when a process started.
_TICK_SECONDS = 0.01


class Guardian:
    """The launcher's end of the pipe. Use it as a context manager."""

    def __init__(self) -> None:
        packages = os.path.dirname(os.path.dirname(psutil.__file__))  # noqa: PTH120
        command = [sys.executable, "-I", "-S", __file__, packages]
        # Of its own session, so that Ctrl-C in the terminal does not end it before the ranks.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, cwd="/"
        )

    def watch(self, leader_pid: int) -> None:
        """Have the session ended that `leader_pid` leads, a child that was not waited for yet."""
        self._tell(f"watch {leader_pid} {_seconds_between(self._process.pid, leader_pid)}")

    def expect(self, variable: str) -> None:
        """Have sessions killed that are not watched yet if this process ends.

        Args:
            variable: how a variable of their leaders begins, as ``"NAME=value"``; empty if no more
                sessions are expected.
        """
        self._tell(f"expect {variable}")

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
    leaders: dict[int, psutil.Process] = {}
    folders: set[str] = set()
    deadline: float | None = None
    expected = ""
    rest = b""
    while True:
        seconds = _LOOK_SECONDS if leaders else None
        if deadline is not None:
            seconds = min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic()))
        told = select.select([pipe], [], [], seconds)[0]
        if deadline is not None and time.monotonic() >= deadline:
            _kill(leaders)
            deadline = None
        _forget_ended(leaders)
        if not told:
            continue
        read = os.read(pipe, 4096)
        if not read:  # closed: the launcher has ended, in whatever way
            break
        *lines, rest = (rest + read).split(b"\n")
        for word, _, value in (os.fsdecode(line).partition(" ") for line in lines):
            if word == "watch":
                number, seconds_after = value.split()
                _watch(leaders, int(number), float(seconds_after))
            elif word == "expect":
                expected = value
            elif word == "end":
                ends = time.monotonic() + float(value)
                deadline = ends if deadline is None else min(deadline, ends)
            elif word == "remove":
                folders.add(value)
            elif word == "keep":
                folders.discard(value)
            else:
                _kill(leaders)
                leaders.clear()
                deadline = None
    _kill(leaders)
    if expected:
        _kill_expected(expected)
    if folders:
        import shutil

        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _watch(leaders: dict[int, psutil.Process], pid: int, seconds: float) -> None:
    """Add the process that had that number and started then, if it still has it."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if abs(_seconds_between(os.getpid(), pid) - seconds) < _TICK_SECONDS / 2:
            leaders[pid] = process


def _seconds_between(guardian_pid: int, pid: int) -> float:
    """Return how long after the guardian a process started, whatever the clock was set to since."""
    start = psutil.Process(guardian_pid).create_time()
    return float(psutil.Process(pid).create_time() - start)


def _forget_ended(leaders: dict[int, psutil.Process]) -> None:
    """Forget each session of which nothing lives: its number may be given again."""
    # No other process gets the number until the leader has been waited for.
    if any(_session_of(pid) != pid for pid in leaders):
        living = {_session_of(process.pid) for process in _living(leaders)}
        for pid in leaders.keys() - living:
            del leaders[pid]


def _living(leaders: dict[int, psutil.Process]) -> list[psutil.Process]:
    """Return the living processes of the sessions of `leaders`, in whatever process group."""
    sessions = {
        pid
        for pid, leader in leaders.items()
        if leader.is_running() or not psutil.pid_exists(pid)  # otherwise the number was reused
    }
    found = []
    for pid in psutil.pids() if sessions else []:
        if _session_of(pid) in sessions:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    found.append(process)
    return found


def _kill(leaders: dict[int, psutil.Process]) -> None:
    """Kill every process of the sessions of `leaders`, until none is found."""
    for _ in range(20):
        living = _living(leaders)
        for process in living:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not living:
            return
        time.sleep(0.01)  # a process that was being forked is found the next time


def _kill_expected(variable: str) -> None:
    """Kill the sessions whose leader has such a variable, also those that are about to begin."""
    name, _, start = variable.partition("=")
    ends = time.monotonic() + _SEARCH_SECONDS
    while time.monotonic() < ends:
        leaders = {}
        for pid in psutil.pids():
            with contextlib.suppress(psutil.Error):
                if _session_of(pid) == pid and (
                    (process := psutil.Process(pid)).environ().get(name, "").startswith(start)
                ):
                    leaders[pid] = process
        _kill(leaders)
        time.sleep(0.02)


def _session_of(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    _guard(sys.stdin.fileno())
