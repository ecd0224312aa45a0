"""A process that kills a group of ranks if its launcher dies or the ranks do not end in time.

::

    launcher ──pipe──> guardian            "expect …", "watch 4711 START"; closed when it dies
       │
       └──starts──> ranks 4711, 4712 …     each in a session of its own, with its own children

The guardian kills every session it watches when the launcher has ended, even by SIGKILL, or when
the ranks have not ended within their grace period. While PyTorch starts the ranks, their process
ids are unknown. If the launcher ends during that time, the guardian finds the ranks by a variable
in their environment. At the end, the guardian removes temporary folders.
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

if __name__ == "__main__":  # started without `site`, to start fast: find psutil by its path
    sys.path.append(sys.argv[1])

import psutil  # noqa: E402

__all__ = ["Guardian"]

# How often to look for processes of a session whose leader has ended.
_LOOK_SECONDS = 1.0

# How long to look for ranks that a launcher was starting when it ended: a forked process has the
# variable only after exec.
_SEARCH_SECONDS = 1.0

# The kernel records the start of a process in clock ticks.
_TICK_SECONDS = 0.01


class Guardian:
    """The launcher's end of the pipe, as a context manager."""

    def __init__(self) -> None:
        packages = os.path.dirname(os.path.dirname(psutil.__file__))  # noqa: PTH120
        command = [sys.executable, "-I", "-S", __file__, packages]
        # In a new session, so that Ctrl-C in the terminal does not reach the guardian.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, cwd="/"
        )

    def watch(self, leader_pid: int) -> None:
        """Watch the session of `leader_pid`, a child that this process has not waited for."""
        self._send(f"watch {leader_pid} {_seconds_between(self._process.pid, leader_pid)}")

    def expect(self, variable: str) -> None:
        """Announce sessions that are being started; the guardian kills them if this process ends.

        Args:
            variable: ``"NAME=value"``: the environment of the sessions' leaders has the variable
                NAME, and its value begins with ``value``. Empty if no more sessions are expected.
        """
        self._send(f"expect {variable}")

    def end(self, seconds: float) -> None:
        """Let the guardian kill all watched sessions after `seconds`."""
        self._send(f"end {seconds}")

    def clear(self) -> None:
        """Kill all watched sessions, and stop watching them: the group restarts."""
        self._send("clear")

    def remove(self, folder: Path) -> None:
        """Let the guardian remove `folder` when it ends."""
        self._send(f"remove {folder}")

    def keep(self, folder: Path) -> None:
        """Cancel `remove` for `folder`."""
        self._send(f"keep {folder}")

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(os.fsencode(f"{line}\n"))
            self._process.stdin.flush()

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipe, and wait until the guardian has killed its sessions and has ended."""
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
        ready = select.select([pipe], [], [], seconds)[0]
        if deadline is not None and time.monotonic() >= deadline:
            _kill(leaders)
            deadline = None
        _forget_ended(leaders)
        if not ready:
            continue
        read = os.read(pipe, 4096)
        if not read:  # closed: the launcher has ended
            break
        *lines, rest = (rest + read).split(b"\n")
        for word, _, value in (os.fsdecode(line).partition(" ") for line in lines):
            if word == "watch":
                leader_pid, seconds_after = value.split()
                _watch(leaders, int(leader_pid), float(seconds_after))
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
    """Add the process with the id `pid`, if it started `seconds` after the guardian."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if abs(_seconds_between(os.getpid(), pid) - seconds) < _TICK_SECONDS / 2:
            leaders[pid] = process


def _seconds_between(guardian_pid: int, pid: int) -> float:
    """Return how long after the guardian a process started, even if the clock was set meanwhile."""
    start = psutil.Process(guardian_pid).create_time()
    return float(psutil.Process(pid).create_time() - start)


def _forget_ended(leaders: dict[int, psutil.Process]) -> None:
    """Forget the sessions without a living process, because their ids may be reused."""
    # A process id is not reused until the parent has waited for the process.
    if any(_session_of(pid) != pid for pid in leaders):
        living = {_session_of(process.pid) for process in _living(leaders)}
        for pid in leaders.keys() - living:
            del leaders[pid]


def _living(leaders: dict[int, psutil.Process]) -> list[psutil.Process]:
    """Return the living processes of the sessions of `leaders`, in any process group."""
    sessions = {
        pid
        for pid, leader in leaders.items()
        if leader.is_running() or not psutil.pid_exists(pid)  # otherwise the id was reused
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
    """Kill the processes of the sessions of `leaders` until none is found."""
    for _ in range(20):
        living = _living(leaders)
        for process in living:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not living:
            return
        time.sleep(0.01)  # the next iteration finds processes that were being forked


def _kill_expected(variable: str) -> None:
    """Kill the sessions whose leader has the variable, including sessions that begin soon."""
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
