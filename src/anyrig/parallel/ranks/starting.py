"""Ends what a launcher has started of its ranks, when it is stopped or killed meanwhile.

PyTorch starts all ranks of a node in one loop, and hands out their process numbers when the loop is
over. Just before it starts a rank, it looks up that rank's log file: there the loop can be left,
between two ranks. Those that have been started are found among the children of this process; by the
guardian, when this process was killed, by the file that each is to write its error to.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from .guardian import Guardian

# Set by torchrun's agent for its ranks.
_RUN_VARIABLE = "TORCHELASTIC_RUN_ID"
_ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"


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
        self._guardian.expect(f"{_ERROR_FILE_VARIABLE}={attempt}{os.sep}")
        for local_rank, stream in self._hidden_streams:
            (files.tee_stdouts if stream == "stdout" else files.tee_stderrs).pop(local_rank, None)
        files.stdouts = _WatchedPaths(files.stdouts, self._before_each)
        return files


def end_started(run_id: str, guardian: Guardian, seconds: float) -> None:
    """End the ranks of a start that was left: ask each, and have all killed in `seconds`."""
    started = []
    for child in psutil.Process().children():
        with suppress(psutil.Error, OSError):
            if child.environ().get(_RUN_VARIABLE) == run_id and os.getsid(child.pid) == child.pid:
                guardian.watch(child.pid)
                os.killpg(child.pid, signal.SIGTERM)
                started.append(child)
    guardian.expect("")
    guardian.end(seconds)
    psutil.wait_procs(started, timeout=seconds)
