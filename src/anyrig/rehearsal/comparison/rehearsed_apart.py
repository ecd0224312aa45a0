"""A rehearsal in a process of its own, whose output goes to standard error."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
    with tempfile.TemporaryDirectory(prefix="anyrig-comparison-") as folder:
        file = Path(folder) / "facts.json"
        words = ["rehearse", "--quiet", "--rig", str(rig), "--json", str(file), *flags, *command]
        with subprocess.Popen(
            [sys.executable, "-m", "anyrig", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdout is not None
            output = _Output(process.stdout, shows_output)
            try:
                status = process.wait()
            except BaseException:
                _end(process)
                raise
            output.wait()
        facts = json.loads(file.read_bytes()) if file.exists() else None
        return RehearsedApart(status, facts, output.last_line)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


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
