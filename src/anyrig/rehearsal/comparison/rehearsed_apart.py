"""A rehearsal in a process of its own, whose output goes to standard error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ...virtual.rig import VirtualRig

# How long to wait for the last lines of a rehearsal that has ended. A process that the rehearsal
# left behind may keep the pipe open.
_LAST_LINES_SECONDS = 2.0
# How long a rehearsal may take to end after Ctrl-C, which its process receives too.
_ENDING_SECONDS = 10.0


@dataclass(frozen=True)
class RehearsedApart:
    """How a rehearsal ended.

    Attributes:
        status: its exit status.
        facts: what it wrote with ``--json``; None if it wrote nothing.
        last_line: the last line of its output; None if there was none.
    """

    status: int
    facts: dict[str, Any] | None
    last_line: str | None


def rehearse_apart(
    rig: VirtualRig, flags: Sequence[str], command: Sequence[str], *, shows_output: bool
) -> RehearsedApart:
    """Rehearse a program with ``anyrig rehearse`` in a process of its own.

    Args:
        rig: the rig.
        flags: further flags of ``anyrig rehearse``.
        command: the program and its arguments.
        shows_output: copy the program's output to standard error.

    Raises:
        KeyboardInterrupt: this process was interrupted. The rehearsal has ended.
    """

    def words(file: Path) -> list[str]:
        own = ["rehearse", "--quiet", "--rig", str(rig), "--json", str(file)]
        return ["-m", "anyrig", *own, *flags, *command]

    with RunningRehearsal(words, os.environ, shows_output=shows_output) as running:
        return running.wait()


class RunningRehearsal:
    """A rehearsal in a process of its own, which ends with the block of this context manager."""

    def __init__(
        self,
        words: Callable[[Path], Sequence[str]],
        environment: Mapping[str, str],
        *,
        shows_output: bool,
    ) -> None:
        """Start the process.

        Args:
            words: returns the words after ``python``, given the file for the facts.
            environment: the environment variables of the process.
            shows_output: copy the program's output to standard error.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="anyrig-comparison-")
        self._file = Path(self._folder.name) / "facts.json"
        self._process = subprocess.Popen(
            [sys.executable, *words(self._file)],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        self._output = _Output(self._process.stdout, shows_output)

    def __enter__(self) -> RunningRehearsal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def has_ended(self) -> bool:
        """Return whether the rehearsal has ended."""
        return self._process.poll() is not None

    def wait(self) -> RehearsedApart:
        """Wait for the end of the rehearsal, and return what it wrote."""
        status = self._process.wait()
        self._output.wait()
        facts = json.loads(self._file.read_bytes()) if self._file.exists() else None
        return RehearsedApart(status, facts, self._output.last_line)

    def interrupt(self) -> None:
        """Ask the rehearsal to end, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Release what the rehearsal used. If it has not ended, wait a while, then kill it.

        After Ctrl-C, its process ends by itself: the terminal sends the signal to both.
        """
        with self._folder, self._process:
            try:
                self._process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()


class _Output:
    """Copies the lines of a pipe to standard error, in a thread, and keeps the last one."""

    def __init__(self, pipe: IO[bytes], shows: bool) -> None:
        self.last_line: str | None = None
        self._pipe, self._shows = pipe, shows
        self._thread = threading.Thread(target=self._copy, name="anyrig-output", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the last lines of a process that has ended."""
        self._thread.join(_LAST_LINES_SECONDS)

    def _copy(self) -> None:
        for line in self._pipe:
            text = line.decode(errors="replace")
            if text.strip():
                self.last_line = text.strip()
            if self._shows:
                sys.stderr.write(text)
                sys.stderr.flush()
