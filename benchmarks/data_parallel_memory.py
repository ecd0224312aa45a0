"""Measure the memory balance of data parallelism: the lead's peak against the other devices'.

The model is a language model with 32,000 words on four virtual A100s, shape-only. With `loss=`, the
lead's peak may be at most 1.05 times the largest of the others. Stock `nn.DataParallel` and anyrig
without `loss=` are measured for comparison.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from rich.console import Console
from rich.table import Table

import anyrig
from workloads.figures import bar_text, write_figures
from workloads.training import Training, rehearse

BAR = 1.05
RIG = "4xA100-80GB"
# Shares by memory settle after three steps.
FUSED = Training("language", "anyrig", batch=64, devices=4, warm_up_steps=5, steps=1)
VARIANTS = {
    "anyrig, loss=": FUSED,
    "anyrig, loss outside": replace(FUSED, fused_loss=False),
    "anyrig, loss outside, shares='memory'": replace(FUSED, fused_loss=False, shares="memory"),
    "stock nn.DataParallel": replace(FUSED, engine="stock"),
}


def main() -> int:
    table = Table("engine", "lead", "largest other", "ratio", "bar", title="peak allocated bytes")
    rows, holds = rehearse(RIG, list(VARIANTS.values())), None
    for name, row in zip(VARIANTS, rows, strict=True):
        if "error" in row:
            table.add_row(name, row["error"])
            continue
        lead, *others = row["peak_bytes"]
        row["ratio"] = lead / max(others)
        barred = VARIANTS[name] is FUSED
        if barred:
            holds = row["holds"] = row["ratio"] <= BAR
        table.add_row(
            name,
            anyrig.units.format_bytes(lead),
            anyrig.units.format_bytes(max(others)),
            f"{row['ratio']:.3f}",
            bar_text(str(BAR), holds) if barred else "",
        )
    Console().print(table)
    write_figures("data_parallel_memory", rows)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
