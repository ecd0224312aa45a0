"""Log files that allow a signal to interrupt the start of the ranks.

PyTorch starts all ranks of a node in one loop, and returns their process ids afterwards. It looks
up a rank's log file just before it starts the rank, so an exception in the lookup ends the loop.
To find the ranks that have started, the guardian uses the variable that names their error file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from .guardian import Guardian
from .places import ERROR_FILE


class _WatchedPaths(dict[int, str]):
    """Log files by local rank; a lookup first calls a function, which may raise."""

    def __init__(self, paths: dict[int, str], before_each: Callable[[], None]) -> None:
        super().__init__(paths)
        self._before_each = before_each

    def __getitem__(self, local_rank: int) -> str:
        self._before_each()
        return super().__getitem__(local_rank)


class InterruptibleLogs(DefaultLogsSpecs):
    """The log files of ranks in a folder. Streams that are not hidden are shown as well."""

    def __init__(
        self,
        folder: str,
        guardian: Guardian,
        before_each: Callable[[], None],
        hidden_streams: frozenset[tuple[int, str]] = frozenset(),
    ) -> None:
        """Call `before_each`, which may raise, before each rank is started."""
        super().__init__(log_dir=folder, tee=Std.ALL, redirects=Std.NONE)
        self._guardian = guardian
        self._before_each = before_each
        self._hidden_streams = hidden_streams

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        """Return the files of each rank; see `DefaultLogsSpecs`."""
        files = super().reify(envs)
        attempt = Path(next(iter(files.error_files.values()))).parents[1]
        self._guardian.expect(f"{ERROR_FILE}={attempt}{os.sep}")
        for local_rank, stream in self._hidden_streams:
            (files.tee_stdouts if stream == "stdout" else files.tee_stderrs).pop(local_rank, None)
        files.stdouts = _WatchedPaths(files.stdouts, self._before_each)
        return files
