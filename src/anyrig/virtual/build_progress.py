"""What a person sees while the virtual backend is built: a bar on a terminal, else one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class BuildProgress:
    """Shows on standard error that a build runs; standard output belongs to the program.

    Args:
        compiler: the first line of its ``--version``.
        steps: the number of steps the build has.
    """

    def __init__(self, compiler: str, steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        self._compiler = compiler
        self._bar = Progress(
            "Building the virtual GPUs, once for this PyTorch",
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=steps)

    def __enter__(self) -> BuildProgress:
        if self._bar.console.is_terminal:
            self._bar.start()
        else:
            _say(f"building the virtual GPUs, once for this PyTorch, with {self._compiler}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar.console.is_terminal:
            self._bar.stop()

    def advance(self) -> None:
        """Count one step more as done."""
        self._bar.advance(self._task)

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
