"""What a person sees while the virtual backend is built: a bar on a terminal, else lines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# How often a line is written where there is no terminal.
SECONDS_BETWEEN_LINES = 5.0

_SECONDS_BETWEEN_TICKS = 0.5

# A bar that is full before the work is done would lie.
_FULLEST = 0.95


class BuildProgress:
    """Shows on standard error how far a build is; standard output belongs to the program.

    A build is a few compilers that each run for most of a minute and say nothing, so progress is
    the time that has passed of the time that was estimated.

    Args:
        compiler: the first line of its ``--version``.
        estimated_seconds: how long the build takes on a machine like those it was measured on.
    """

    def __init__(self, compiler: str, estimated_seconds: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._compiler = compiler
        self._estimated_seconds = estimated_seconds
        self._bar = Progress(
            "Building the virtual GPUs, once for this PyTorch",
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn(f"of about {estimated_seconds:.0f} s"),
            console=Console(stderr=True),
            transient=True,
        )
        self._done = threading.Event()
        on_terminal = self._bar.console.is_terminal
        # Ctrl-C may come between its start and the block, which then nobody leaves.
        self._ticks = threading.Thread(
            target=self._fill if on_terminal else self._repeat, daemon=True
        )

    def __enter__(self) -> BuildProgress:
        self._start = time.monotonic()
        if not self._bar.console.is_terminal:
            _say(
                "building the virtual GPUs, once for this PyTorch, in about "
                f"{self._estimated_seconds:.0f} s, with {self._compiler}"
            )
        self._ticks.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._ticks.join()

    def _fill(self) -> None:
        with self._bar:
            task = self._bar.add_task("", total=1.0)
            while not self._done.wait(_SECONDS_BETWEEN_TICKS):
                passed = (time.monotonic() - self._start) / self._estimated_seconds
                self._bar.update(task, completed=min(passed, _FULLEST))

    def _repeat(self) -> None:
        while not self._done.wait(SECONDS_BETWEEN_LINES):
            seconds = time.monotonic() - self._start
            _say(
                f"building the virtual GPUs: {seconds:.0f} s of about "
                f"{self._estimated_seconds:.0f} s"
            )

    @staticmethod
    @contextmanager
    def waiting_for(builder: str) -> Iterator[None]:
        """Say, while the block runs, that `builder` builds and this process waits."""
        from rich.console import Console

        console = Console(stderr=True)
        text = f"waiting for the virtual GPUs, which {builder} is building"
        if console.is_terminal:
            with console.status(text):
                yield
        else:
            _say(text)
            yield


def _say(text: str) -> None:
    sys.stderr.write(f"anyrig: {text}\n")
    sys.stderr.flush()
