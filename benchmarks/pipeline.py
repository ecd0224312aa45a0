"""Measure pipelines in one process on the virtual clock, shape-only, against one device.

A step with m micro-batches on n equal devices takes at least (m + n - 1) / (m n) of the time of the
same micro-batches on one device. The figures are shares of that ideal: of equal layers, since a
model that cannot be cut into equal stages loses time for another reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from workloads.figures import bar_text, write_figures

RIG = "8xA100-80GB"
BENCHMARKS = Path(__file__).parent
LAYERS, WIDTH, HEADS, TOKENS, SAMPLES = 16, 2048, 16, 1024, 2  # of each micro-batch
# Devices, micro-batches, schedule, and the least share of the ideal.
RUNS = (
    (2, 4, "1f1b", 0.97),
    (4, 32, "1f1b", 0.92),
    (8, 32, "1f1b", 0.88),
    (2, 4, "gpipe", 0.97),
    (4, 32, "gpipe", 0.92),
    (8, 32, "gpipe", 0.88),
)
STEPS = 2


def measure(devices: int, micro_batches: int, schedule: str) -> dict[str, Any]:
    """Return the figures of one run. Call once in a new process."""
    from anyrig.virtual import clock, install

    install(RIG, shape_only=True)

    import torch
    from torch import nn

    import anyrig
    from workloads.language_model import Layer

    module = nn.Sequential(*(Layer(WIDTH, HEADS) for _ in range(LAYERS)))
    criterion = nn.MSELoss()
    one = devices == 1
    if one:
        module = module.cuda()
        model: Any = module
    else:
        rig = anyrig.Rig.parse(",".join(f"cuda:{index}" for index in range(devices)))
        model = anyrig.spread(
            module,
            rig,
            how="pipeline",
            micro_batches=micro_batches,
            schedule=schedule,
            loss=criterion,
        )
    x = torch.zeros(micro_batches * SAMPLES, TOKENS, WIDTH, device="cuda:0")
    y = torch.zeros_like(x, device=f"cuda:{devices - 1}")

    def step() -> None:
        if one:
            for part, target in zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True):
                criterion(model(part), target).backward()
        else:
            model(x, target=y).backward()
        for parameter in module.parameters():
            parameter.grad = None

    def wait() -> float:
        for index in range(devices):
            torch.cuda.synchronize(index)
        return clock().done_seconds

    step()
    for index in range(devices):
        torch.cuda.reset_peak_memory_stats(index)
    start = wait()
    host = clock().host_seconds
    for _ in range(STEPS):
        step()
    host = clock().host_seconds - host
    seconds = (wait() - start) / STEPS
    reading = clock()
    return {
        "step_seconds": seconds,
        "host_seconds": host / STEPS,
        "peak_bytes": [torch.cuda.max_memory_allocated(index) for index in range(devices)],
        "busy": [device.compute_seconds / (STEPS + 1) for device in reading.devices[:devices]],
    }


def measure_apart(devices: int, micro_batches: int, schedule: str) -> dict[str, Any]:
    command = [sys.executable, __file__, str(devices), str(micro_batches), schedule]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=900)
    return json.loads(finished.stdout.splitlines()[-1])


def main() -> int:
    if len(sys.argv) == 4:
        print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
        return 0
    rows = []
    alone: dict[int, float] = {}
    for devices, micro_batches, schedule, bar in RUNS:
        if micro_batches not in alone:
            alone[micro_batches] = measure_apart(1, micro_batches, "none")["step_seconds"]
        row = measure_apart(devices, micro_batches, schedule)
        ideal = alone[micro_batches] * (micro_batches + devices - 1) / (micro_batches * devices)
        row.update(devices=devices, micro_batches=micro_batches, schedule=schedule, bar=bar)
        row.update(share=ideal / row["step_seconds"], one_device_seconds=alone[micro_batches])
        row["holds"] = row["share"] >= bar
        rows.append(row)
        print(row)
    table = Table("devices", "micro-batches", "schedule", "step ms", "share of ideal", "bar")
    for row in rows:
        table.add_row(
            str(row["devices"]),
            str(row["micro_batches"]),
            row["schedule"],
            f"{1e3 * row['step_seconds']:.1f}",
            f"{row['share']:.3f}",
            bar_text(f">= {row['bar']}", row["holds"]),
        )
    Console().print(table)
    write_figures("pipeline", rows)
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
