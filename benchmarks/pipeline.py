"""Measure pipelines in one process on the virtual clock, shape-only, against one device.

A step with m micro-batches on n equal devices takes at least (m + n - 1) / (m n) of the time that
one device takes for the same micro-batches, unless the schedule fills the gaps. The layers are
equal and n divides their number, since unequal stages lose time for another reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from workloads.figures import bar_text, write_figures

RIG = "8xA100-80GB"
LAYERS, WIDTH, HEADS, TOKENS, SAMPLES = 16, 2048, 16, 1024, 2  # samples of each micro-batch
SHARE_BARS = {(2, 4): 0.97, (4, 32): 0.92, (8, 32): 0.88}
SPEED_UP_BAR = 3.5  # of zero-bubble with 4 devices and 8 micro-batches, over 10 steps
PEAK_SLACK = 1.1
GIB = 2**30


@dataclass(frozen=True)
class Run:
    """Steps of training on the first devices of the rig; on one device without a pipeline."""

    devices: int
    micro_batches: int
    schedule: str = "1f1b"
    steps: int = 2


ROUNDS = (
    *(
        Run(devices, micro_batches, schedule)
        for devices, micro_batches in SHARE_BARS
        for schedule in ("gpipe", "1f1b")
    ),
    Run(4, 8, "1f1b", 10),
    Run(4, 8, "zero-bubble", 10),
    Run(4, 8, "zero-bubble-v", 10),
    Run(4, 8, "interleaved", 10),
)


def measure(run: Run) -> dict[str, Any]:
    """Return the figures of one run. Call once in a new process."""
    from anyrig.virtual import clock, install

    install(RIG, shape_only=True)

    import torch
    from torch import nn

    import anyrig
    from workloads.language_model import Layer

    module = nn.Sequential(*(Layer(WIDTH, HEADS) for _ in range(LAYERS)))
    criterion = nn.MSELoss()
    model: Any = module.cuda()
    if run.devices > 1:
        rig = anyrig.Rig.parse(",".join(f"cuda:{index}" for index in range(run.devices)))
        model = anyrig.spread(
            module,
            rig,
            how="pipeline",
            micro_batches=run.micro_batches,
            schedule=run.schedule,
            loss=criterion,
        )
    optimizer = torch.optim.SGD(module.parameters(), 0.01)
    x = torch.zeros(run.micro_batches * SAMPLES, TOKENS, WIDTH, device="cuda:0")
    y = torch.zeros_like(x, device=f"cuda:{run.devices - 1}")

    def step() -> None:
        if run.devices > 1:
            model(x, target=y).backward()
        else:
            parts = x.chunk(run.micro_batches), y.chunk(run.micro_batches)
            for part, target in zip(*parts, strict=True):
                (criterion(model(part), target) / run.micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()

    def wait() -> float:
        for index in range(run.devices):
            torch.cuda.synchronize(index)
        return clock().done_seconds

    step()
    start, host_start = wait(), clock().host_seconds
    resting = [torch.cuda.memory_allocated(index) for index in range(run.devices)]
    gradients = [0] * run.devices
    for parameter in module.parameters():
        gradients[parameter.device.index or 0] += parameter.numel() * parameter.element_size()
    for index in range(run.devices):
        torch.cuda.reset_peak_memory_stats(index)
    for _ in range(run.steps):
        step()
    host_seconds = clock().host_seconds - host_start
    peaks = [torch.cuda.max_memory_allocated(index) for index in range(run.devices)]
    return {
        "step_seconds": (wait() - start) / run.steps,
        "host_seconds": host_seconds / run.steps,
        "peak_bytes": peaks,
        "resting_bytes": resting,  # parameters and the batch
        "gradient_bytes": gradients,
    }


def measure_apart(run: Run) -> dict[str, Any]:
    command = [sys.executable, __file__, json.dumps(asdict(run))]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=1800)
    return asdict(run) | json.loads(finished.stdout.splitlines()[-1])


def judge(rows: list[dict[str, Any]], alone: dict[tuple[int, int], float]) -> None:
    """Add to each row its speed-up, its share of the ideal, and whether its bars hold."""
    by_run = {(row["devices"], row["micro_batches"], row["schedule"]): row for row in rows}
    for row in rows:
        devices, micro_batches, schedule = key = tuple(
            row[name] for name in ("devices", "micro_batches", "schedule")
        )
        row["speed_up"] = alone[micro_batches, row["steps"]] / row["step_seconds"]
        ideal = micro_batches * devices / (micro_batches + devices - 1)
        row["share"] = row["speed_up"] / ideal
        bars = {}
        if key[:2] in SHARE_BARS:
            bar = SHARE_BARS[key[:2]]
            bars[f"share >= {bar}"] = row["share"] >= bar
        other = by_run.get((devices, micro_batches, "gpipe"))
        if schedule == "1f1b" and other is not None:
            # GPipe's peak comes before the first gradients, 1F1B's when all are there.
            activations = other["peak_bytes"][0] - other["resting_bytes"][0]
            most = row["resting_bytes"][0] + row["gradient_bytes"][0]
            most += activations * min(1.0, devices / micro_batches) * PEAK_SLACK
            bars[f"first peak <= {most / GIB:.1f} GiB"] = row["peak_bytes"][0] <= most
        if schedule == "zero-bubble":
            most = max(by_run[devices, micro_batches, "1f1b"]["peak_bytes"])
            bars[f"speed-up >= {SPEED_UP_BAR}"] = row["speed_up"] >= SPEED_UP_BAR
            bars[f"peak <= {most / GIB:.2f} GiB"] = max(row["peak_bytes"]) <= most
        row["bars"] = bars
        row["holds"] = all(bars.values())


def show(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        *("n", "m", "schedule", "step ms", "host ms", "speed-up", "share"),
        *("peaks of first and last, GiB", "bars"),
    )
    table.title = "a training step of m micro-batches on n A100s; share of m n / (m + n - 1)"
    for row in rows:
        table.add_row(
            str(row["devices"]),
            str(row["micro_batches"]),
            row["schedule"],
            f"{1e3 * row['step_seconds']:.0f}",
            f"{1e3 * row['host_seconds']:.0f}",
            f"{row['speed_up']:.2f}",
            f"{row['share']:.3f}",
            f"{row['peak_bytes'][0] / GIB:.1f} {row['peak_bytes'][-1] / GIB:.1f}",
            "\n".join(bar_text(*bar) for bar in row["bars"].items()),
        )
    return table


def main() -> int:
    if len(sys.argv) == 2:
        print(json.dumps(measure(Run(**json.loads(sys.argv[1])))))
        return 0
    alone: dict[tuple[int, int], float] = {}
    rows = []
    for run in ROUNDS:
        key = run.micro_batches, run.steps
        if key not in alone:
            alone[key] = measure_apart(Run(1, run.micro_batches, steps=run.steps))["step_seconds"]
        rows.append(measure_apart(run))
    judge(rows, alone)
    Console().print(show(rows))
    write_figures("pipeline", rows)
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
