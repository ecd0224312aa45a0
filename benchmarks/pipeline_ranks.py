"""Measure a pipeline over two ranks on the CPU, of one thread each, against one rank.

A step with m micro-batches on n ranks takes at least (m + n - 1) / (m n) of the time of the same
micro-batches on one rank. The two are measured in turns, as is how="split", in which one rank
computes at a time. Run with both cores free.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

import anyrig
from workloads.figures import bar_text, write_figures

BLOCKS, WIDTH, HEADS, SAMPLES, TOKENS = 8, 256, 4, 16, 64
RANKS, MICRO_BATCHES = 2, 8
TURNS, STEPS = 8, 3
LEAST_SHARE, LEAST_OVER_SPLIT = 0.97, 1.6
# What the machine can do while both cores compute, as they do in a pipeline.
BUSY = "alone, both ranks at once"
SCHEDULES = ("1f1b", "gpipe", "zero-bubble")


def measure() -> dict[str, list[float]]:
    """Return the seconds of a step in each turn, by what ran; every rank calls this."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    criterion = nn.MSELoss()
    x, y = torch.randn(2, SAMPLES, TOKENS, WIDTH).unbind()

    def build() -> nn.Sequential:
        return nn.Sequential(
            *(
                nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True)
                for _ in range(BLOCKS)
            )
        )

    models: dict[str, Any] = {
        schedule: anyrig.spread(
            build(),
            "cpu",
            how="pipeline",
            loss=criterion,
            micro_batches=MICRO_BATCHES,
            schedule=schedule,
        )
        for schedule in SCHEDULES
    }
    models["split"] = anyrig.spread(build(), "cpu", how="split", loss=criterion)
    alone = build()

    def step_alone() -> None:
        for part, target in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True):
            (criterion(alone(part), target) / MICRO_BATCHES).backward()
        alone.zero_grad()

    def step_of(model: Any) -> Any:
        def step() -> None:
            model(x, target=y).backward()
            model.zero_grad()

        return step

    steps = {
        "alone": step_alone,
        BUSY: step_alone,
        **{name: step_of(model) for name, model in models.items()},
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(TURNS + 1):
        for name, step in steps.items():
            anyrig.barrier()
            started = time.perf_counter()
            if name != "alone" or dist.get_rank() == turn % RANKS:
                for _ in range(STEPS):
                    step()
            taken = torch.tensor((time.perf_counter() - started) / STEPS)
            anyrig.barrier()
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if turn:  # the first one warms up
                seconds[name].append(float(taken))
    return seconds


def main() -> int:
    seconds = anyrig.launch(measure, rig="cpu", nproc_per_device=RANKS)
    ideal = (MICRO_BATCHES + RANKS - 1) / (MICRO_BATCHES * RANKS)
    table = Table(
        "what", "step ms, median", "fastest", "share of ideal", "with both busy", "over split"
    )
    medians = {name: statistics.median(turns) for name, turns in seconds.items()}
    rows = []
    for name, turns in seconds.items():
        # Ratios of neighbouring turns, as the machine may change its speed.
        share = statistics.median(
            a * ideal / b for a, b in zip(seconds["alone"], turns, strict=True)
        )
        over_split = statistics.median(a / b for a, b in zip(seconds["split"], turns, strict=True))
        row = {
            "what": name,
            "median_seconds": medians[name],
            "fastest_seconds": min(turns),
            "share_of_ideal": share,
            "share_of_ideal_of_fastest": min(seconds["alone"]) * ideal / min(turns),
            "share_of_ideal_with_both_busy": statistics.median(
                a * ideal / b for a, b in zip(seconds[BUSY], turns, strict=True)
            ),
            "over_split": over_split,
        }
        rows.append(row)
        table.add_row(
            name,
            f"{1e3 * medians[name]:.1f}",
            f"{1e3 * min(turns):.1f}",
            f"{share:.3f}",
            f"{row['share_of_ideal_with_both_busy']:.3f}",
            f"{over_split:.2f}",
        )
    Console().print(table)
    best = max((row for row in rows if row["what"] == "1f1b"), key=lambda row: row["over_split"])
    holds = best["share_of_ideal"] >= LEAST_SHARE, best["over_split"] >= LEAST_OVER_SPLIT
    print("1f1b, share of ideal:", bar_text(f">= {LEAST_SHARE}", holds[0]))
    print("1f1b, over split:", bar_text(f">= {LEAST_OVER_SPLIT}", holds[1]))
    write_figures("pipeline-ranks", rows)
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
