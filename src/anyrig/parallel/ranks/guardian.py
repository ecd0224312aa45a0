"""The process that sees to it that a group of ranks ends, whatever becomes of its launcher.

::

    launcher ──pipe──> guardian            "expect …", "watch 4711 START"; closed when it dies
       │
       └──starts──> ranks 4711, 4712 …     each in a session of its own, with its own children

The guardian kills every session it watches when the launcher is gone, also by SIGKILL, or when the
ranks have not ended in the seconds they were given. While ranks are being started, the launcher
does not know their process numbers; if it is killed then, the guardian finds them by a variable of
theirs. Then it removes the folders that nobody is to find. It imports nothing but the standard
library, so that it costs a few MiB and some 20 ms.
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

# How often to look for what is left of a session whose leader has ended.
_LOOK_SECONDS = 1.0

# How long to look for ranks that a launcher was starting when it was killed: one that it had forked
# shows its variables only when it has become the rank's program.
_SEARCH_SECONDS = 1.0


class Guardian:
    """The launcher's end of the pipe. Use it as a context manager."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        # Of its own session, so that Ctrl-C in the terminal does not end it before the ranks.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, cwd="/"
        )

    def watch(self, leader_pid: int) -> None:
        """Have the session ended that `leader_pid` leads, a child that was not waited for yet."""
        stat = _stat(leader_pid)
        self._tell(f"watch {leader_pid} {0 if stat is None else stat.start}")

    def expect(self, variable: str) -> None:
        """Have what leads a session killed, with its session, if this process ends before `watch`
        was called for it.

        Args:
            variable: what one of its variables begins with, as ``"NAME=value"``; empty if nothing
                is to be expected any more.
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
    sessions = _Sessions()
    folders: set[str] = set()
    deadline: float | None = None
    expected = ""
    rest = b""
    while True:
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        told = sessions.wait(pipe, seconds)
        if deadline is not None and time.monotonic() >= deadline:
            sessions.kill()
            deadline = None
        if not told:
            continue
        read = os.read(pipe, 4096)
        if not read:  # closed: the launcher has ended, in whatever way
            break
        *lines, rest = (rest + read).split(b"\n")
        for word, _, value in (os.fsdecode(line).partition(" ") for line in lines):
            if word == "watch":
                leader, start = value.split()
                sessions.add(int(leader), int(start))
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
                sessions.kill()
                sessions = _Sessions()
                deadline = None
    sessions.kill()
    if expected:
        _kill_expected(os.fsencode(expected))
    if folders:
        import shutil

        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _kill_expected(variable: bytes) -> None:
    """Kill the sessions whose leader has such a variable, also those that are just beginning."""
    ends = time.monotonic() + _SEARCH_SECONDS
    while os.path.isdir("/proc/self") and time.monotonic() < ends:  # noqa: PTH112
        sessions = _Sessions()
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):  # noqa: PTH208
            stat = _stat(pid)
            if stat is not None and stat.lives and stat.session == pid and _has(pid, variable):
                sessions.add(pid, stat.start)
        sessions.kill()
        time.sleep(0.02)


def _has(pid: int, variable: bytes) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
        return any(each.startswith(variable) for each in file.read().split(b"\0"))
    return False


class _Sessions:
    """Sessions, each known by the number of its leader and by when that started.

    A number is free again once the leader has been waited for and no other process is in the
    session. It may then be another process's, so a session is forgotten when nothing of it lives.
    """

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}
        self._leaders: dict[int, int] = {}  # what is readable when a leader ends, and which

    def add(self, leader: int, start: int) -> None:
        self._starts[leader] = start
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # it has ended, or the kernel is too old
                self._leaders[os.pidfd_open(leader)] = leader

    def wait(self, pipe: int, seconds: float | None) -> bool:
        """Return whether `pipe` can be read, after `seconds` at the latest, or earlier."""
        poll = select.poll()
        for descriptor in (pipe, *self._leaders):
            poll.register(descriptor, select.POLLIN)
        if len(self._leaders) < len(self._starts):  # some are gone, and their children may be next
            seconds = _LOOK_SECONDS if seconds is None else min(seconds, _LOOK_SECONDS)
        ready = {descriptor for descriptor, _ in poll.poll(seconds and seconds * 1000)}
        for descriptor in ready & self._leaders.keys():
            del self._leaders[descriptor]
            os.close(descriptor)
        if len(self._leaders) < len(self._starts):
            self._living()
        return pipe in ready

    def kill(self) -> None:
        """Kill every process of the sessions, until none is left to be found."""
        if not os.path.isdir("/proc/self"):  # noqa: PTH112 - macOS: their process groups must do
            for leader in self._starts:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(leader, signal.SIGKILL)
            return
        for _ in range(20):
            living = self._living()
            for pid, start in living.items():
                _kill(pid, start)
            if not living:
                return
            time.sleep(0.01)  # one that was being forked meanwhile is found the next time

    def _living(self) -> dict[int, int]:
        """Return the processes of the sessions and their starts; forget sessions without any."""
        if not os.path.isdir("/proc/self"):  # noqa: PTH112
            return {}
        numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
        found = {pid: stat for pid in numbers if (stat := _stat(pid)) is not None}
        for leader, start in list(self._starts.items()):
            is_another = leader in found and found[leader].start != start
            if is_another or not any(
                stat.lives and stat.session == leader for stat in found.values()
            ):
                self._forget(leader)
        return {
            pid: stat.start
            for pid, stat in found.items()
            if stat.lives and stat.session in self._starts
        }

    def _forget(self, leader: int) -> None:
        del self._starts[leader]
        for descriptor in [each for each, other in self._leaders.items() if other == leader]:
            del self._leaders[descriptor]
            os.close(descriptor)


class _Stat:
    """What the kernel says of a process; a process group of its own is no way out of a session."""

    def __init__(self, session: int, start: int, lives: bool) -> None:
        self.session = session
        self.start = start  # in clock ticks, after which a number that is given again differs
        self.lives = lives


def _stat(pid: int) -> _Stat | None:
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - pathlib takes a while to import
            fields = file.read().rpartition(")")[2].split()
        return _Stat(session=int(fields[3]), start=int(fields[19]), lives=fields[0] not in "ZX")
    return None


def _kill(pid: int, start: int) -> None:
    """Kill the process `pid` that started then, and not one that has its number since."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not hasattr(os, "pidfd_open"):
            os.kill(pid, signal.SIGKILL)
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # an old kernel, or too many open files; or it has ended
            os.kill(pid, signal.SIGKILL)
            return
        try:
            now = _stat(pid)
            if now is not None and now.start == start:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    _guard(sys.stdin.fileno())
