"""Measure how long saving and loading a checkpoint take, and the host memory that they need.

A model of 2 GiB on the CPU is saved and loaded by anyrig and by `torch.save` and `torch.load`, in
turns, on the same disk. anyrig also flushes its files to the disk, and hashes them when it saves
and when it loads; the rival is measured as it is, and with a flush (fsync). Both write a new
file that replaces the last: to write over it would be faster, and lose it in a crash. A save in
the background is measured until training goes on. The figures are medians over the turns. Each side
loads what it has just written, from the page cache.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import anyrig
from anyrig.checkpoint import BackgroundSaver
from workloads.figures import bar_text, write_figures

TURNS = 4
LAYERS, WIDTH = 32, 4096  # 64 MiB a layer
MODEL_BYTES = LAYERS * WIDTH * WIDTH * 4
# At most this fraction of the rival's time, with host memory of the model's size at most.
BARS = {
    "anyrig.save": ("torch.save", 1.1),
    "anyrig.load": ("torch.load", 1.1),
    "BackgroundSaver.save": ("torch.save", 0.25),
}


def make_model() -> nn.Module:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


class PeakOfHost:
    """The private memory of this process above that at the start, while the block runs."""

    def __enter__(self) -> PeakOfHost:
        self._process = psutil.Process()
        self._start = self._private()
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _private(self) -> int:
        memory = self._process.memory_info()
        return memory.rss - memory.shared  # files that are mapped can be dropped at any time

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self.bytes = max(self.bytes, self._private() - self._start)


def flush(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="anyrig-benchmark-"))
    try:
        return measure(folder)
    finally:
        shutil.rmtree(folder)


def measure(folder: Path) -> int:
    model = make_model()
    file, series = folder / "model.pt", folder / "series"

    def save_by_torch() -> None:
        torch.save(model.state_dict(), file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)

    def save_flushed() -> None:
        save_by_torch()
        flush(file)

    def load_by_torch() -> None:
        model.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))

    saver = BackgroundSaver(folder / "background", keep=1)
    actions: dict[str, Callable[[], object]] = {
        "torch.save": save_by_torch,
        "torch.save and fsync": save_flushed,
        "anyrig.save": lambda: anyrig.save(series, model=model, keep=1),
        "BackgroundSaver.save": lambda: saver.save(model=model),
        "torch.load": load_by_torch,
        "anyrig.load": lambda: anyrig.load(series, model=model),
        "anyrig.load, verify=False": lambda: anyrig.load(series, model=model, verify=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    peaks = dict.fromkeys(actions, 0)
    for turn in range(TURNS + 1):
        for name, action in actions.items():
            os.sync()  # what the one before has written
            with PeakOfHost() as peak:
                started = time.perf_counter()
                action()
                taken = time.perf_counter() - started
                saver.wait()
            if turn:
                seconds[name].append(taken)
                peaks[name] = max(peaks[name], peak.bytes)
    rows: list[dict[str, Any]] = []
    for name, own in seconds.items():
        row = {"way": name, "seconds": statistics.median(own), "host_bytes": peaks[name]}
        if name in BARS:
            rival, bar = BARS[name]
            pairs = zip(own, seconds[rival], strict=True)
            row["ratio"] = statistics.median(one / other for one, other in pairs)
            row["holds"] = row["ratio"] <= bar and row["host_bytes"] <= MODEL_BYTES
        rows.append(row)
    table = Table("way", "seconds", "MiB of host memory", "of torch", "bar")
    for row in rows:
        ratio = f"{row['ratio']:.3f}" if "ratio" in row else ""
        bar = bar_text(f"at most {BARS[row['way']][1]}", row["holds"]) if ratio else ""
        table.add_row(
            row["way"], f"{row['seconds']:.2f}", f"{row['host_bytes'] / 2**20:.0f}", ratio, bar
        )
    Console().print(table)
    write_figures("checkpoint", rows, model_bytes=MODEL_BYTES)
    return 0 if all(row.get("holds", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
