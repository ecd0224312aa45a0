"""Progress of the virtual backend's build: a bar on a terminal, otherwise lines of text.

A build runs a few compilers for most of a minute each, and compilers report no progress. The CPU
time that they need is known in advance, though, whatever else the machine does. So the progress is
the CPU time of the compilers as a fraction of what the build needs::

    CPU time   0 ──────────────▶ 40 s of 110 s       the bar: 36 %
    time             0 ──────────────▶ 30 s                of about 30 / 0.36 = 83 s
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

# The interval between lines where standard error is not a terminal.
SECONDS_BETWEEN_LINES = 5.0

_SECONDS_BETWEEN_TICKS = 0.5

# Up to this fraction the bar is proportional to the work. Then it only approaches the end, since
# another processor may need more time than was measured for the estimate.
_CERTAIN = 0.7

# The fraction from which on the progress says more about the duration than the estimate does.
_TELLING = 0.1


def estimate_seconds(cpu_seconds: float, jobs: int) -> float:
    """Return how long `jobs` compilers need together, by the cores and the load of this machine.

    Args:
        cpu_seconds: the CPU time of all compilers.
        jobs: the number of compilers that run concurrently.
    """
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return cpu_seconds / jobs * max(1.0, (load + jobs) / cores)


def fraction_done(cpu_seconds: float, needed_cpu_seconds: float) -> float:
    """Return the progress, which is below 1 however much time the compilers have used."""
    share = cpu_seconds / needed_cpu_seconds
    rest = 1 - _CERTAIN
    return share if share <= _CERTAIN else 1 - rest * math.exp(-(share - _CERTAIN) / rest)


class BuildProgress:
    """A context manager that shows the progress of a build on standard error.

    Args:
        compiler: the first line of the compiler's ``--version``.
        cpu_seconds: the CPU time that the build needs.
        jobs: the number of compilers that run concurrently.
    """

    def __init__(self, compiler: str, cpu_seconds: float, jobs: int) -> None:
        from rich.console import Console

        self._compiler = compiler
        self._cpu_seconds = cpu_seconds
        self._estimated_seconds = estimate_seconds(cpu_seconds, jobs)
        self._console = Console(stderr=True)
        self._done = threading.Event()
        # A daemon: Ctrl-C may come between the thread's start and the block, and then nothing would
        # ever stop the thread.
        self._ticks = threading.Thread(
            target=self._fill if self._console.is_terminal else self._repeat, daemon=True
        )

    def __enter__(self) -> BuildProgress:
        self._start = time.monotonic()
        self._cpu_seconds_before = _cpu_seconds_of_children()
        if not self._console.is_terminal:
            _say(
                "building the virtual GPUs, once for this PyTorch, in about "
                f"{self._estimated_seconds:.0f} s, with {self._compiler}"
            )
        self._ticks.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._ticks.join()

    def _measure(self) -> tuple[float, float]:
        """Return the elapsed seconds, and the estimated seconds of the whole build."""
        elapsed = time.monotonic() - self._start
        used = _cpu_seconds_of_children() - self._cpu_seconds_before
        done = fraction_done(max(0.0, used), self._cpu_seconds)
        whole = elapsed / done if done >= _TELLING else self._estimated_seconds
        # Where the system does not say what children have used, the bar still stops before its end.
        return elapsed, max(whole, elapsed / fraction_done(elapsed, self._estimated_seconds))

    def _fill(self) -> None:
        with self._bar() as bar:
            task = bar.add_task("", total=1.0, whole=self._estimated_seconds)
            while not self._done.wait(_SECONDS_BETWEEN_TICKS):
                elapsed, whole = self._measure()
                bar.update(task, completed=elapsed / whole, whole=whole)

    def _bar(self) -> Progress:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        return Progress(
            "Building the virtual GPUs, once for this PyTorch",
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("of about {task.fields[whole]:.0f} s"),
            console=self._console,
            transient=True,
        )

    def _repeat(self) -> None:
        while not self._done.wait(SECONDS_BETWEEN_LINES):
            elapsed, whole = self._measure()
            _say(f"building the virtual GPUs: {elapsed:.0f} s of about {whole:.0f} s")

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


def _cpu_seconds_of_children() -> float:
    """Return the CPU time of this process's children, ended and running.

    Other children than compilers are few while this process builds, and count as compilers.
    """
    import psutil

    own = psutil.Process()
    times = own.cpu_times()
    seconds = times.children_user + times.children_system
    for child in own.children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            times = child.cpu_times()
            seconds += sum(times[:4])
    return float(seconds)


def _say(text: str) -> None:
    sys.stderr.write(f"anyrig: {text}\n")
    sys.stderr.flush()
