"""Measure the overhead of `anyrig.spread` on one device, in microseconds per step.

A step is the forward and backward pass of a small layer: bare, and wrapped by anyrig, Lightning's
Fabric and accelerate (if installed), on the CPU and on a virtual GPU. anyrig may add at most 10
microseconds. The variants take turns in blocks of steps in one process. The figure is the median
over the turns of the difference in processor time within a turn.
"""

from __future__ import annotations

import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import anyrig
from anyrig.virtual import install
from workloads.figures import bar_text, write_figures

BAR_MICROSECONDS = 10.0
TURNS, STEPS = 60, 100
NOT_INSTALLED = "not installed"


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def wrap_with_fabric(module: nn.Module, device: str) -> Callable[..., Any] | None:
    try:
        from lightning_fabric import Fabric
    except ImportError:
        return None
    return Fabric(accelerator="cpu" if device == "cpu" else "cuda", devices=1).setup(module)


def wrap_with_accelerate(module: nn.Module, device: str) -> Callable[..., Any] | None:
    try:
        from accelerate import Accelerator
    except ImportError:
        return None
    return Accelerator(cpu=device == "cpu").prepare(module)


def make_steps(device: str) -> dict[str, Callable[[], None] | None]:
    """Return the step of each engine; None for an engine that is not installed."""
    module = Regression().to(device)
    criterion = nn.MSELoss()
    here, y = torch.randn(8, 16, device=device), torch.randn(8, 4, device=device)
    rig = anyrig.Rig.parse(device)

    def fresh() -> nn.Module:
        return copy.deepcopy(module)

    def outside(model: Callable[..., Any] | None, x: Tensor = here) -> Callable[[], None] | None:
        return None if model is None else lambda: criterion(model(x), y).backward()

    with_loss = anyrig.spread(fresh(), rig, loss=criterion)
    steps = {
        "bare": outside(fresh()),
        "bare again": outside(fresh()),
        "anyrig": outside(anyrig.spread(fresh(), rig)),
        "anyrig, loss=": lambda: with_loss(here, target=y).backward(),
        "Fabric": outside(wrap_with_fabric(fresh(), device)),
        "accelerate": outside(wrap_with_accelerate(fresh(), device)),
    }
    if device != "cpu":
        bare, spread = fresh(), anyrig.spread(fresh(), rig)
        elsewhere = here.cpu()
        steps["bare, moved by hand"] = lambda: criterion(bare(elsewhere.to(device)), y).backward()
        steps["anyrig, moved"] = outside(spread, elsewhere)
    return steps


# The baseline of an engine, where the baseline is not "bare".
BASELINES = {"anyrig, moved": "bare, moved by hand"}


def measure(device: str) -> list[dict[str, Any]]:
    steps = make_steps(device)
    present = {name: step for name, step in steps.items() if step is not None}
    readings: dict[str, list[float]] = {name: [] for name in present}
    for turn in range(TURNS + 3):
        for name, step in present.items():
            start = time.process_time()
            for _ in range(STEPS):
                step()
            if turn >= 3:
                readings[name].append(1e6 * (time.process_time() - start) / STEPS)
    rows = []
    for name in steps:
        row: dict[str, Any] = {"device": device, "engine": name}
        if name in present:
            baseline = readings[BASELINES.get(name, "bare")]
            row["step_microseconds"] = statistics.median(readings[name])
            row["over_bare_microseconds"] = statistics.median(
                own - base for own, base in zip(readings[name], baseline, strict=True)
            )
            if name.startswith("anyrig"):
                row["holds"] = row["over_bare_microseconds"] <= BAR_MICROSECONDS
        rows.append(row)
    return rows


def measure_apart(device: str) -> list[dict[str, Any]]:
    """Measure in a new process, because accelerate fixes the device once per process."""
    command = [sys.executable, __file__, device]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300)
    return json.loads(finished.stdout.splitlines()[-1])


def main() -> int:
    if len(sys.argv) == 2:
        torch.set_num_threads(1)
        install("1xA100-80GB", clock=False)
        print(json.dumps(measure(sys.argv[1])))
        return 0
    rows = [*measure_apart("cpu"), *measure_apart("cuda:0")]
    table = Table("device", "engine", "µs per step", "over bare", "bar", title="one device")
    for row in rows:
        if "step_microseconds" not in row:
            table.add_row(row["device"], row["engine"], NOT_INSTALLED)
            continue
        table.add_row(
            row["device"],
            row["engine"],
            f"{row['step_microseconds']:.1f}",
            f"{row['over_bare_microseconds']:+.1f}",
            bar_text(f"{BAR_MICROSECONDS:.0f}", row["holds"]) if "holds" in row else "",
        )
    Console().print(table)
    write_figures("data_parallel_overhead", rows)
    return 0 if all(row.get("holds", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
