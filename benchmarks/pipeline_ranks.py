"""Measure a pipeline over two ranks on the CPU, of one thread each, against one rank.

A step with m micro-batches on n ranks takes at least (m + n - 1) / (m n) of the time of the same
micro-batches on one rank. The two are measured in turns, as is one micro-batch, with which one rank
computes at a time. Each schedule is measured in processes of its own, as in a training script,
because a model in stages has threads that wake up while it does nothing. Run with both cores free.

The bar is for 16 samples. There, a micro-batch has 2 samples, and 8 micro-batches take longer than
the whole batch, on one rank, too. With 64 samples they hardly do.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

import anyrig
from anyrig.parallel.plans import Pipeline
from workloads.figures import bar_text, write_figures

BLOCKS, WIDTH, HEADS, TOKENS = 8, 256, 4, 64
RANKS, MICRO_BATCHES = 2, 8
# By the number of samples: how often each kind of step is measured, and of how many steps.
SAMPLES = {16: (6, 8), 64: (3, 2)}
LEAST_SHARE, LEAST_OVER_SPLIT = 0.97, 1.6
SCHEDULES = ("1f1b", "gpipe", "zero-bubble", "zero-bubble-h2", "zero-bubble-few")
# What runs: the pipeline, split, one rank, and one rank's work on both ranks at once, which is what
# the machine can do while both cores compute.
PIPELINE, SPLIT, ALONE, BUSY = "pipeline", "split", "alone", "alone, both ranks at once"


def measure(schedule: str, samples: int, turns: int, steps_per_turn: int) -> dict[str, list[float]]:
    """Return the seconds of a step in each turn, by what ran; every rank calls this."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    criterion = nn.MSELoss()
    x, y = torch.randn(2, samples, TOKENS, WIDTH).unbind()

    def build() -> nn.Sequential:
        return nn.Sequential(
            *(
                nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True)
                for _ in range(BLOCKS)
            )
        )

    def spread(**options: Any) -> Any:
        return anyrig.spread(build(), "cpu", loss=criterion, **options)

    pipeline = spread(plan=Pipeline(micro_batches=MICRO_BATCHES, schedule=schedule))
    split = spread(plan=Pipeline(micro_batches=1))
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
        ALONE: step_alone,
        BUSY: step_alone,
        PIPELINE: step_of(pipeline),
        SPLIT: step_of(split),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 1):
        for name, step in steps.items():
            anyrig.barrier()
            started = time.perf_counter()
            if name != ALONE or dist.get_rank() == turn % RANKS:
                step()  # not measured: ranks begin it together, as no other step of a training loop
                started = time.perf_counter()
                for _ in range(steps_per_turn):
                    step()
            taken = torch.tensor((time.perf_counter() - started) / steps_per_turn)
            anyrig.barrier()
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if turn:  # the first one warms up
                seconds[name].append(float(taken))
    return seconds


def main() -> int:
    ideal = (MICRO_BATCHES + RANKS - 1) / (MICRO_BATCHES * RANKS)
    table = Table(
        "samples", "schedule", "step ms", "share of ideal", "with both busy", "over split"
    )
    rows, holds = [], []
    for samples, how_often in SAMPLES.items():
        for schedule in SCHEDULES:
            seconds = anyrig.launch(
                measure, [schedule, samples, *how_often], rig="cpu", nproc_per_device=RANKS
            )

            def times(other: str, of: dict[str, list[float]] = seconds) -> float:
                # Ratios of neighbouring turns, as the machine may change its speed.
                pairs = zip(of[other], of[PIPELINE], strict=True)
                return statistics.median(one / pipeline for one, pipeline in pairs)

            row = {
                "samples": samples,
                "schedule": schedule,
                "median_seconds": {what: statistics.median(its) for what, its in seconds.items()},
                "fastest_seconds": {what: min(its) for what, its in seconds.items()},
                "share_of_ideal": ideal * times(ALONE),
                "share_of_ideal_with_both_busy": ideal * times(BUSY),
                "over_split": times(SPLIT),
            }
            rows.append(row)
            table.add_row(
                f"{samples}",
                schedule,
                f"{1e3 * row['median_seconds'][PIPELINE]:.1f}",
                f"{row['share_of_ideal']:.3f}",
                f"{row['share_of_ideal_with_both_busy']:.3f}",
                f"{row['over_split']:.3f}",
            )
    Console().print(table)
    for row in rows:
        holds.append((row["share_of_ideal"] >= LEAST_SHARE, row["over_split"] >= LEAST_OVER_SPLIT))
        print(
            f"{row['samples']} samples, {row['schedule']}: share of ideal "
            f"{bar_text(f'>= {LEAST_SHARE}', holds[-1][0])}, over split "
            f"{bar_text(f'>= {LEAST_OVER_SPLIT}', holds[-1][1])}"
        )
    write_figures("pipeline-ranks", rows)
    return 0 if any(map(all, holds[: len(SCHEDULES)])) else 1


if __name__ == "__main__":
    sys.exit(main())
