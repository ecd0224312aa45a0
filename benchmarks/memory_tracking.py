"""Measure what `anyrig.memory.track` costs: a training step while it is tracked, and afterwards.

The model is a transformer with four layers of width 512, on the CPU. Figures are processor time.
A tracked step may take 1.5 times as long as an untracked one, and a step after tracking as long as
before it. The rival is PyTorch's own `torch.distributed._tools.mem_tracker.MemTracker`, which
counts bytes by kind. All take turns in one process. The figures are medians over the turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from anyrig.memory import track
from workloads.figures import bar_text, write_figures

TURNS, STEPS = 5, 2
BARS = {"anyrig.memory.track": 1.5, "after tracking": 1.02}


def make_step() -> tuple[Callable[[], None], nn.Module, torch.optim.Optimizer]:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 64, 512)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model, optimizer


def follow_with_pytorch(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> AbstractContextManager[Any]:
    # Private, like the module: PyTorch's examples use it so.
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    return tracker


def main() -> int:
    torch.set_num_threads(1)  # threads that wait for each other take processor time
    step, model, optimizer = make_step()
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "untracked": nullcontext,
        "anyrig.memory.track": track,
        "after tracking": nullcontext,
        "MemTracker of PyTorch": lambda: follow_with_pytorch(model, optimizer),
    }
    readings: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, make in ways.items():
            with make() as tracker:
                reset = getattr(tracker, "reset_mod_stats", int)  # MemTracker's, before each step
                step()  # what begins and ends with the block is no part of a step
                started = time.process_time()
                for _ in range(STEPS):
                    reset()
                    step()
                seconds = (time.process_time() - started) / STEPS
            if turn:
                readings[name].append(seconds)
    rows: list[dict[str, Any]] = []
    for name, own in readings.items():
        pairs = zip(own, readings["untracked"], strict=True)
        ratio = statistics.median(one / bare for one, bare in pairs)
        row = {"way": name, "step_seconds": statistics.median(own), "ratio": ratio}
        if name in BARS:
            row["holds"] = ratio <= BARS[name]
        rows.append(row)
    table = Table("way", "seconds a step", "of untracked", "bar")
    for row in rows:
        bar = bar_text(f"at most {BARS[row['way']]}", row["holds"]) if "holds" in row else ""
        table.add_row(row["way"], f"{row['step_seconds']:.4f}", f"{row['ratio']:.3f}", bar)
    Console().print(table)
    write_figures("memory_tracking", rows)
    return 0 if all(row.get("holds", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
