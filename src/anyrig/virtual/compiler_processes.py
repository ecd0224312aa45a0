"""The compilers of a build as processes, none of which outlives the build."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ..errors import BuildError

# The compiler beside a watcher, which ends both once no writer is left at the pipe on standard
# input: when the builder closes it, and when the builder is gone, killed for example. The watcher
# ends the whole group, since a compiler is a driver with children of its own.
_WATCHED = 'exec 3<&0 </dev/null; (read _ <&3; kill -KILL 0) >/dev/null 2>&1 & "$@" 3<&-'


class CompilerProcesses(contextlib.AbstractContextManager["CompilerProcesses"]):
    """The compilers of a build, at most `at_once` at a time; leaving ends them all.

    Args:
        at_once: how many run at a time.
        folder: where they write their temporary files. A compiler that is killed leaves them, and
            whoever made the folder removes it.
    """

    def __init__(self, at_once: int, folder: Path) -> None:
        self._environment = {**os.environ, "TMPDIR": str(folder)}
        self._watched_end, self._held_end = os.pipe()
        self._threads = ThreadPoolExecutor(at_once)

    def __exit__(self, *_: object) -> None:
        os.close(self._held_end)
        self._threads.shutdown(cancel_futures=True)
        os.close(self._watched_end)

    def start(self, command: Sequence[str], failure: str) -> Future[None]:
        """Run `command`; the result is a `BuildError` that starts with `failure` if it fails."""
        return self._threads.submit(self._run, command, failure)

    def _run(self, command: Sequence[str], failure: str) -> None:
        done = subprocess.run(
            ["/bin/sh", "-c", _WATCHED, "sh", *command],
            env=self._environment,
            stdin=self._watched_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            check=False,
        )
        if done.returncode != 0:
            raise BuildError(
                f"{failure} (exit status {done.returncode}) by: {shlex.join(command)}\n"
                f"{_first_errors(done.stdout)}"
            )


def _first_errors(output: str, most: int = 12) -> str:
    """Return the lines of a compiler's `output` that say what is wrong, without what follows."""
    lines = output.splitlines()
    wrong = [line for line in lines if "error" in line]
    return "\n".join(wrong[:most] or lines[-most:])
