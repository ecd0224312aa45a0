"""The process that sees to it that a group of ranks ends, whatever becomes of its launcher.

::

    launcher ──pipe──> guardian            "watch 4711", "end 4.0"; closed when the launcher dies
       │
       └──starts──> ranks 4711, 4712 …     each in a session of its own, with its own children

The guardian kills every session it watches when the launcher is gone, also by SIGKILL, or when the
ranks have not ended in the seconds they were given. It imports nothing but the standard library, so
that it costs a few MiB and some 20 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

__all__ = ["Guardian"]


class Guardian:
    """The launcher's end of the pipe. Use it as a context manager."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]
        # Of its own session, so that Ctrl-C in the terminal does not end it before the ranks.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def watch(self, leader_pid: int) -> None:
        """Have the session that `leader_pid` leads ended with this process."""
        self._tell(f"watch {leader_pid}")

    def end(self, seconds: float) -> None:
        """Have all that is watched killed in `seconds`, if it has not ended by then."""
        self._tell(f"end {seconds}")

    def forget(self) -> None:
        """Watch nobody any more: the group is to be started again."""
        self._tell("forget")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
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
        for word, _, value in (line.decode().partition(" ") for line in lines):
            if word == "watch":
                watched.add(int(value))
            elif word == "end":
                deadline = time.monotonic() + float(value)
            else:
                watched.clear()
                deadline = None
    _kill(watched)


def _kill(leaders: set[int]) -> None:
    # While any member of a session lives, its number is given to no new process. Between the end
    # of the last one and this line it could be, if all numbers had been used up in the meantime.
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


if __name__ == "__main__":
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    _guard(sys.stdin.fileno())
