"""Progress of the virtual backend's build: a bar on a terminal, otherwise lines of text."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# The interval between lines where standard error is not a terminal.
SECONDS_BETWEEN_LINES = 5.0

_SECONDS_BETWEEN_TICKS = 0.5

# The bar must not look full before the build is done.
_FULLEST = 0.95


class BuildProgress:
    """A context manager that shows the progress of a build on standard error.

    A build runs a few compilers for most of a minute each, and compilers report no progress. So the
    progress is the elapsed time as a fraction of the estimated time.

    Args:
        compiler: the first line of the compiler's ``--version``.
        estimated_seconds: the expected duration of the build.
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
        # A daemon: Ctrl-C may come between the thread's start and the block, and then nothing would
        # ever stop the thread.
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
        """Report, while the block runs, that this process waits for the build of `builder`."""
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
