"""The compiler processes of a build, which end with the build."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ..errors import BuildError

# Runs the compiler together with a watcher. The watcher reads the pipe on standard input and gets
# end of file when the builder closes the pipe or dies. It then kills the process group, because a
# compiler starts child processes.
_WATCHED = 'exec 3<&0 </dev/null; (read _ <&3; kill -KILL 0) >/dev/null 2>&1 & "$@" 3<&-'


class CompilerProcesses(contextlib.AbstractContextManager["CompilerProcesses"]):
    """A pool of compiler processes. Leaving the context kills those that still run.

    Args:
        at_once: the number of compilers that run concurrently.
        folder: the folder for their temporary files. A killed compiler leaves its files behind, so
            the caller must remove the folder.
    """

    def __init__(self, at_once: int, folder: Path) -> None:
        self._environment = {**os.environ, "TMPDIR": str(folder)}
        self._watched_end, self._held_end = os.pipe()
        self._threads = ThreadPoolExecutor(at_once)

    def __exit__(self, *_: object) -> None:
        os.close(self._held_end)
        self._threads.shutdown(cancel_futures=True)
        os.close(self._watched_end)

    def start(self, command: Sequence[str], failure: str) -> Future[str]:
        """Start `command`, whose output is the result of the future.

        On failure the future raises a `BuildError` that begins with `failure`.
        """
        return self._threads.submit(self._run, command, failure)

    def _run(self, command: Sequence[str], failure: str) -> str:
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
        return done.stdout


def _first_errors(output: str, most: int = 12) -> str:
    """Return the first `most` lines of `output` with an error, or its last `most` lines."""
    lines = output.splitlines()
    wrong = [line for line in lines if "error" in line]
    return "\n".join(wrong[:most] or lines[-most:])
