"""Unequal GPUs: a step's simulated time against what the sum of their speeds allows.

The speed of each card is measured alone, on as many rows as the smallest card holds. Two cards
with the speeds `a` and `b` could at best take `batch / (a + b)`; with shares by speed a step may
take 1.1 of that. The even split is beside it, and stock `nn.DataParallel`, which knows no other.
The language model is measured on two batches: these cards have no NVLink, and what 0.7 GB of
parameters take over PCIe does not shrink with the batch.
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
# Rows that fit the smallest card, and the batches to be divided.
ALONE_BATCH = {"language": 24, "images": 128}
BATCHES = {"language": (24, 48), "images": (128,)}
# Shares are corrected in the first steps; the figure is of those after.
WARM_UP_STEPS = 12


def compare(rig: str) -> list[dict[str, Any]]:
    models = [Training(model, "bare", batch) for model, batch in ALONE_BATCH.items()]
    of_cards = [rehearse(card, models) for card in RIGS[rig]]
    rows = []
    for alone, *of_model in zip(models, *of_cards, strict=True):
        for batch in BATCHES[alone.model]:
            seconds = [row["step_seconds"] * batch / alone.batch for row in of_model]
            rows += compare_engines(rig, replace(alone, batch=batch), seconds)
    return rows


def compare_engines(rig: str, alone: Training, seconds: list[float]) -> list[dict[str, Any]]:
    allowed_seconds = 1 / sum(1 / each for each in seconds)
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
    table.title = "a step by the virtual clock"
    rows = [row for rig in RIGS for row in compare(rig)]
    for row in rows:
        names = row["rig"], f"{row['model']}, {row['batch']} rows", row["name"]
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
