"""Check data parallelism for leaks: 3,000 training steps, and 100 wrappers created and dropped.

The benchmark runs on four virtual GPUs with data. It counts resident memory, bytes on the devices,
Python objects, threads and open files before and after, with a warm-up first. None may grow, except
that resident memory may grow by 8 MiB, because the C library does not always return memory.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import anyrig
from anyrig.virtual import install
from workloads.figures import bar_text, write_figures

STEPS, CYCLES = 3000, 100
RESIDENT_SLACK_BYTES = 8 * 2**20


def count_resources() -> dict[str, int]:
    gc.collect()
    process = psutil.Process()
    return {
        "resident bytes": process.memory_info().rss,
        "bytes on devices": sum(
            torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())
        ),
        "objects": len(gc.get_objects()),
        "threads of Python": threading.active_count(),
        "threads of the system": process.num_threads(),
        "open files": process.num_fds(),
    }


def measure(action: Callable[[], None], warm_up: int, times: int) -> dict[str, tuple[int, int]]:
    """Return each count before and after `times` calls of `action`."""
    for _ in range(warm_up):
        action()
    before = count_resources()
    for _ in range(times):
        action()
    after = count_resources()
    return {name: (before[name], after[name]) for name in before}


def module() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)
    ).cuda()


def make_step() -> Callable[[], None]:
    """Return a training step with a new wrapper."""
    model = anyrig.spread(module(), anyrig.Rig.parse("all"), loss=nn.CrossEntropyLoss())
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(64, 64, device="cuda"), torch.randint(10, (64,), device="cuda")
    sizes = iter(range(10**9))

    def step() -> None:
        size = 40 + next(sizes) % 24  # batch sizes vary, so that the shares change
        optimizer.zero_grad()
        model(x[:size], target=y[:size]).backward()
        optimizer.step()

    return step


def cycle() -> None:
    step = make_step()
    step()
    step()


def main() -> int:
    torch.set_num_threads(1)
    install("4xA100-80GB")
    measured = {
        f"{STEPS} steps": measure(make_step(), 100, STEPS),
        f"{CYCLES} wrappers": measure(cycle, 20, CYCLES),
    }
    table = Table("action", "count", "before", "after", "bar", title="growth")
    rows: list[dict[str, Any]] = []
    for what, counts in measured.items():
        for name, (before, after) in counts.items():
            slack = RESIDENT_SLACK_BYTES if name == "resident bytes" else 0
            # A few objects are in caches of PyTorch or belong to this loop.
            slack = 100 if name == "objects" else slack
            holds = after - before <= slack
            rows.append(
                {"what": what, "count": name, "before": before, "after": after, "holds": holds}
            )
            table.add_row(what, name, f"{before:,}", f"{after:,}", bar_text(f"+{slack:,}", holds))
    Console().print(table)
    write_figures("data_parallel_growth", rows)
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
