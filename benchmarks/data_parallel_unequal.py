"""Measure data parallelism on unequal GPUs against the ideal step time, on the virtual clock.

The speed of each GPU is first measured alone, with a batch that fits the smallest GPU. Two GPUs
with the speeds `a` and `b` (samples per second) could at best take ``batch / (a + b)``. With shares
by speed, a step may take 1.1 times that. An even split and stock `nn.DataParallel`, which always
splits evenly, are measured for comparison. The language model is measured with two batch sizes:
these GPUs have no NVLink, and the copies of 0.7 GB of parameters over PCIe take the same time
whatever the batch size.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from workloads.figures import bar_text, write_figures
from workloads.training import Training, rehearse

BAR = 1.1
BY_SPEED = "anyrig, by speed"
RIGS = {
    "A100-80GB+T4": ("A100-80GB", "T4"),
    "RTX-4090+RTX-3090": ("RTX-4090", "RTX-3090"),
}
# Samples that fit the smallest GPU, and the batch sizes to split.
ALONE_BATCH = {"language": 24, "images": 128}
BATCHES = {"language": (24, 48), "images": (128,)}
# The first steps correct the shares. The figure is measured afterwards.
WARM_UP_STEPS = 12


def compare(rig: str) -> list[dict[str, Any]]:
    models = [Training(model, "bare", batch) for model, batch in ALONE_BATCH.items()]
    rows_of_gpus = [rehearse(gpu, models) for gpu in RIGS[rig]]
    rows = []
    for alone, *gpu_rows in zip(models, *rows_of_gpus, strict=True):
        for batch in BATCHES[alone.model]:
            seconds = [row["step_seconds"] * batch / alone.batch for row in gpu_rows]
            rows += compare_engines(rig, replace(alone, batch=batch), seconds)
    return rows


def compare_engines(rig: str, alone: Training, seconds: list[float]) -> list[dict[str, Any]]:
    allowed_seconds = 1 / sum(1 / gpu_seconds for gpu_seconds in seconds)
    even = replace(alone, engine="anyrig", devices=2, shares=[1, 1])
    variants = {
        BY_SPEED: replace(even, shares="speed", warm_up_steps=WARM_UP_STEPS),
        "anyrig, even": even,
        "stock nn.DataParallel": replace(even, engine="stock"),
    }
    rows = rehearse(rig, list(variants.values()))
    for name, row in zip(variants, rows, strict=True):
        row |= {"name": name, "alone_seconds": seconds, "allowed_seconds": allowed_seconds}
        if "error" not in row:
            row["ratio"] = row["step_seconds"] / allowed_seconds
            if name == BY_SPEED:
                row["holds"] = row["ratio"] <= BAR
    return rows


def main() -> int:
    table = Table("rig", "model", "engine", "step ms", "allowed ms", "ratio", "bar")
    table.title = "step time on the virtual clock"
    rows = [row for rig in RIGS for row in compare(rig)]
    for row in rows:
        names = row["rig"], f"{row['model']}, {row['batch']} samples", row["name"]
        if "error" in row:
            table.add_row(*names, row["error"])
            continue
        table.add_row(
            *names,
            f"{1e3 * row['step_seconds']:.1f}",
            f"{1e3 * row['allowed_seconds']:.1f}",
            f"{row['ratio']:.3f}",
            bar_text(str(BAR), row["holds"]) if "holds" in row else "",
        )
    Console().print(table)
    write_figures("data_parallel_unequal", rows)
    barred = [row for row in rows if row["name"] == BY_SPEED]
    return 0 if all(row.get("holds") for row in barred) else 1


if __name__ == "__main__":
    sys.exit(main())
