"""Measure the overhead of `anyrig run` and `spread` over torchrun and DDP, for two CPU ranks.

(a) The step time of a transformer and a convolutional network with one thread per rank: at most
    1.02 of DDP's. The groups of all launchers run concurrently and take turns, one block of steps
    each, in alternating order. The figure is the median over the turns of the ratio within a turn.
    accelerate and Lightning's Fabric (if installed) and one process with two threads and the
    batches of both ranks are measured for comparison.
(b) The time from the launcher's start to the end of the first step of a small model: at most 0.3 s
    more than with torchrun and DDP. The launchers take turns, and the figure is the median of the
    difference within a turn. The processor time of the launcher and its child processes is reported
    in addition, because other programs on the machine affect it less.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from workloads.figures import bar_text, write_figures
from workloads.ranked_training import NOT_INSTALLED

WORKER = Path(__file__).parent / "workloads" / "ranked_training.py"
MODELS = ("language", "images")
STEP_BAR, START_BAR_SECONDS = 1.02, 0.3
TURNS, BLOCK_SECONDS = int(os.environ.get("TURNS", "20")), 0.5
STARTS = int(os.environ.get("STARTS", "7"))
LONGEST_SECONDS = 300

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ANYRIG = [sys.executable, "-m", "anyrig", "run", "--device", "cpu", "--nproc-per-device", "2"]
ONE_PROCESS = "one process, two threads"
LAUNCHERS = {
    "DDP": TORCHRUN,
    "DDP again": TORCHRUN,
    "anyrig": ANYRIG,
    "anyrig, loss=": ANYRIG,
    "accelerate": TORCHRUN,
    "Fabric": TORCHRUN,
    ONE_PROCESS: [sys.executable],
}
PACKAGES = {"accelerate": "accelerate", "Fabric": "lightning_fabric"}


class Group:
    """The processes of one launcher, and a connection to each rank.

    Attributes:
        first_step_seconds: the time from the launcher's start to the end of the last rank's first
            step.
    """

    def __init__(self, model: str, engine: str) -> None:
        threads = "2" if engine == ONE_PROCESS else "1"
        ranks = 1 if engine == ONE_PROCESS else 2
        path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {"OMP_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(path)}
        with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryFile() as errors:
            server.settimeout(1.0)
            address, port = server.getsockname()
            arguments = [str(WORKER), model, engine.removesuffix(" again"), address, str(port)]
            started = time.time()
            self._process = subprocess.Popen(
                [*LAUNCHERS[engine], *arguments],
                env={**os.environ, **environment},
                stderr=errors,
            )
            self._links: list[socket.socket] = []
            while len(self._links) < ranks:
                try:
                    self._links.append(server.accept()[0])
                except TimeoutError:
                    if self._process.poll() is None and time.time() < started + LONGEST_SECONDS:
                        continue
                    errors.seek(0)
                    sys.exit(f"{engine} did not start:\n{errors.read().decode()}")
        self._files: list[TextIO] = [link.makefile("rw") for link in self._links]
        first_steps = [json.loads(file.readline()) for file in self._files]
        self.first_step_seconds = max(rank["time"] for rank in first_steps) - started

    def train(self, steps: int) -> tuple[float, float]:
        """Train for `steps` steps.

        Return two times per step: the wall time of the slowest rank and the processor time of all
        ranks together.
        """
        for file in self._files:
            file.write(f"{steps}\n")
            file.flush()
        seconds = [json.loads(file.readline()) for file in self._files]
        wall = max(rank["wall"] for rank in seconds)
        return wall / steps, sum(rank["processor"] for rank in seconds) / steps

    def end(self) -> float:
        """End the processes and return the processor seconds of the whole group."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for file, link in zip(self._files, self._links, strict=True):
            file.close()
            link.close()
        self._process.wait(LONGEST_SECONDS)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def find_engines() -> dict[str, bool]:
    """Return for each engine whether it is installed."""
    return {
        engine: engine not in PACKAGES or importlib.util.find_spec(PACKAGES[engine]) is not None
        for engine in LAUNCHERS
    }


def measure_steps(model: str) -> list[dict[str, Any]]:
    installed = find_engines()
    groups = {engine: Group(model, engine) for engine in installed if installed[engine]}
    wall: dict[str, list[float]] = {engine: [] for engine in groups}
    processor: dict[str, list[float]] = {engine: [] for engine in groups}
    groups["DDP"].train(5)
    steps = max(2, round(BLOCK_SECONDS / groups["DDP"].train(5)[0]))
    for turn in range(TURNS + 1):
        order = list(groups) if turn % 2 else list(reversed(groups))
        for engine in order:
            seconds = groups[engine].train(steps)
            if turn:  # the first turn is a warm-up
                wall[engine].append(seconds[0])
                processor[engine].append(seconds[1])
    for group in groups.values():
        group.end()

    def ratio(readings: dict[str, list[float]], engine: str) -> float:
        pairs = zip(readings[engine], readings["DDP"], strict=True)
        return statistics.median(own / ddp for own, ddp in pairs)

    rows: list[dict[str, Any]] = []
    for engine in installed:
        row: dict[str, Any] = {"measured": "step", "model": model, "engine": engine}
        if installed[engine]:
            row["step_seconds"] = statistics.median(wall[engine])
            row["over_ddp"] = ratio(wall, engine)
            row["processor_seconds"] = statistics.median(processor[engine])
            row["processor_over_ddp"] = ratio(processor, engine)
        if engine.startswith("anyrig"):
            row["holds"] = row["over_ddp"] <= STEP_BAR
        rows.append(row)
    return rows


def measure_starts() -> list[dict[str, Any]]:
    compared = ("DDP", "anyrig")
    wall: dict[str, list[float]] = {engine: [] for engine in compared}
    processor: dict[str, list[float]] = {engine: [] for engine in compared}
    for turn in range(STARTS + 1):
        for engine in compared if turn % 2 else reversed(compared):
            group = Group("perceptron", engine)
            seconds = group.end()
            if turn:
                wall[engine].append(group.first_step_seconds)
                processor[engine].append(seconds)
    rows = []
    for engine in compared:
        row: dict[str, Any] = {"measured": "start", "model": "perceptron", "engine": engine}
        row["first_step_seconds"] = statistics.median(wall[engine])
        row["over_ddp_seconds"] = statistics.median(
            own - ddp for own, ddp in zip(wall[engine], wall["DDP"], strict=True)
        )
        row["processor_seconds"] = statistics.median(processor[engine])
        if engine == "anyrig":
            row["holds"] = row["over_ddp_seconds"] <= START_BAR_SECONDS
        rows.append(row)
    return rows


def show_steps(rows: list[dict[str, Any]]) -> Table:
    table = Table("model", "engine", "step ms", "over DDP", "processor ms", "over DDP", "bar")
    table.title = "step time of two ranks"
    for row in rows:
        if "step_seconds" not in row:
            table.add_row(row["model"], row["engine"], NOT_INSTALLED)
            continue
        table.add_row(
            row["model"],
            row["engine"],
            f"{1e3 * row['step_seconds']:.1f}",
            f"{row['over_ddp']:.3f}",
            f"{1e3 * row['processor_seconds']:.1f}",
            f"{row['processor_over_ddp']:.3f}",
            bar_text(f"<= {STEP_BAR}", row["holds"]) if "holds" in row else "",
        )
    return table


def show_starts(rows: list[dict[str, Any]]) -> Table:
    table = Table("engine", "to the first step", "over DDP", "processor", "bar")
    table.title = "start-up of two ranks"
    for row in rows:
        table.add_row(
            row["engine"],
            f"{row['first_step_seconds']:.2f} s",
            f"{row['over_ddp_seconds']:+.2f} s",
            f"{row['processor_seconds']:.2f} s",
            bar_text(f"<= {START_BAR_SECONDS} s", row["holds"]) if "holds" in row else "",
        )
    return table


def main() -> int:
    starts = measure_starts()
    steps = [row for model in MODELS for row in measure_steps(model)]
    console = Console()
    console.print(show_steps(steps))
    console.print(show_starts(starts))
    write_figures("distributed_overhead", [*steps, *starts])
    return 0 if all(row.get("holds", True) for row in [*steps, *starts]) else 1


if __name__ == "__main__":
    sys.exit(main())
