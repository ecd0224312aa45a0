"""Lets a launcher that is stopped while it starts its ranks leave the start half way.

PyTorch starts all ranks of a node in one loop, and returns their process numbers at its end. Just
before it starts a rank, it looks up that rank's log file: there an exception can end the loop. The
guardian finds the ranks that have been started by the variable that names their error file.
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
    """Log files by local rank; looking one up calls a function first."""

    def __init__(self, paths: dict[int, str], before_each: Callable[[], None]) -> None:
        super().__init__(paths)
        self._before_each = before_each

    def __getitem__(self, local_rank: int) -> str:
        self._before_each()
        return super().__getitem__(local_rank)


class InterruptibleLogs(DefaultLogsSpecs):
    """Where the output of ranks goes: shown, unless hidden, and kept in a folder."""

    def __init__(
        self,
        folder: str,
        guardian: Guardian,
        before_each: Callable[[], None],
        hidden_streams: frozenset[tuple[int, str]] = frozenset(),
    ) -> None:
        """Make it; `before_each` is called before each rank is started, and may raise."""
        super().__init__(log_dir=folder, tee=Std.ALL, redirects=Std.NONE)
        self._guardian = guardian
        self._before_each = before_each
        self._hidden_streams = hidden_streams

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        """Return the files of each rank, as PyTorch asks for them."""
        files = super().reify(envs)
        attempt = Path(next(iter(files.error_files.values()))).parents[1]
        self._guardian.expect(f"{ERROR_FILE}={attempt}{os.sep}")
        for local_rank, stream in self._hidden_streams:
            (files.tee_stdouts if stream == "stdout" else files.tee_stderrs).pop(local_rank, None)
        files.stdouts = _WatchedPaths(files.stdouts, self._before_each)
        return files
