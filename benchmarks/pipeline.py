"""Measure pipelines on the virtual clock, shape-only, against one device and against two rivals.

A step with m micro-batches on n equal devices takes at least (m + n - 1) / (m n) of the time that
one device takes for the same micro-batches, unless the schedule fills the gaps. The layers are
equal and n divides their number, since unequal stages lose time for another reason. Their
sequences are short: zero bubble can fill gaps only with gradients of weights, which take less than
a third of a step with attention over long sequences (1,024 tokens: 29 %, a speed-up of 3.46).

The rivals compute the same layers and micro-batches on the same devices: torchgpipe
(``pip install torchgpipe``; one process, compared with GPipe) and torch.distributed.pipelining (a
rank for each device, with its schedule of the same name). All take the mean loss. By default, both
anyrig and torch.distributed.pipelining scale the gradients at the end of a step. With the latter,
the caller can divide each loss instead; one run measures this, without a bar.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from workloads.figures import bar_text, write_figures
from workloads.pipelined_training import RIG, PipelineRun

SHARE_BARS = {(2, 4): 0.97, (4, 32): 0.92, (8, 32): 0.88}
SPEED_UP_BAR = 3.5  # of zero-bubble with 4 devices and 8 micro-batches, over 10 steps
PEAK_SLACK = 1.1
GIB = 2**30

RUNS = (
    *(
        PipelineRun("anyrig", devices, micro_batches, schedule)
        for devices, micro_batches in SHARE_BARS
        for schedule in ("gpipe", "1f1b")
    ),
    PipelineRun("anyrig", 4, 8, "1f1b", 10),
    PipelineRun("anyrig", 4, 8, "zero-bubble", 10),
    PipelineRun("anyrig", 4, 8, "zero-bubble-v", 10),
    PipelineRun("anyrig", 4, 8, "interleaved", 10),
)


def rivals_of(run: PipelineRun) -> Iterator[PipelineRun]:
    if run.schedule == "gpipe":
        yield replace(run, engine="torchgpipe")
    yield replace(run, engine="pipelining")
    if run.schedule == "1f1b" and run.steps > 2:
        yield replace(run, engine="pipelining, parts")


def measure(run: PipelineRun) -> dict[str, Any]:
    """Return the figures of one run. Call once in a new process."""
    from anyrig.virtual import install

    install(RIG, shape_only=True)
    if run.engine.startswith("pipelining"):
        from workloads.ranked_pipeline import measure_over_ranks

        return measure_over_ranks(run)
    from workloads.pipelined_training import measure_in_one_process

    return measure_in_one_process(run)


def measure_apart(run: PipelineRun) -> dict[str, Any]:
    if run.engine == "torchgpipe" and importlib.util.find_spec("torchgpipe") is None:
        return asdict(run) | {"not_measured": "not installed: pip install torchgpipe"}
    command = [sys.executable, __file__, json.dumps(asdict(run))]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=1800)
    return asdict(run) | json.loads(finished.stdout.splitlines()[-1])


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("devices", "micro_batches", "schedule", "steps"))


def judge(rows: list[dict[str, Any]], alone: dict[tuple[int, int], float]) -> None:
    """Add to each row its speed-up, its share of the ideal, and whether its bars hold.

    Rows of rivals get anyrig's step time and first peak over theirs.
    """
    ours = {key_of(row): row for row in rows if row["engine"] == "anyrig"}
    for row in rows:
        devices, micro_batches, schedule, steps = key_of(row)
        bars: dict[str, bool | None] = {}
        row["bars"] = bars
        if "not_measured" in row:
            bars["slower than anyrig"] = None
            continue
        row["speed_up"] = alone[micro_batches, steps] / row["step_seconds"]
        ideal = micro_batches * devices / (micro_batches + devices - 1)
        row["share"] = row["speed_up"] / ideal
        if row["engine"] != "anyrig":
            mine = ours[key_of(row)]
            row["anyrig_time_ratio"] = mine["step_seconds"] / row["step_seconds"]
            row["anyrig_first_peak_ratio"] = mine["peak_bytes"][0] / row["peak_bytes"][0]
            if row["engine"] != "pipelining, parts":
                bars["slower than anyrig"] = row["anyrig_time_ratio"] < 1
            continue
        if (devices, micro_batches) in SHARE_BARS:
            bar = SHARE_BARS[devices, micro_batches]
            bars[f"share >= {bar}"] = row["share"] >= bar
        other = ours.get((devices, micro_batches, "gpipe", steps))
        if schedule == "1f1b" and other is not None:
            # GPipe's peak comes before the first gradients, 1F1B's when all are there.
            activations = other["peak_bytes"][0] - other["resting_bytes"][0]
            most = row["resting_bytes"][0] + row["gradient_bytes"][0]
            most += activations * min(1.0, devices / micro_batches) * PEAK_SLACK
            bars[f"first peak <= {most / GIB:.1f} GiB"] = row["peak_bytes"][0] <= most
        if schedule == "zero-bubble":
            most = max(ours[devices, micro_batches, "1f1b", steps]["peak_bytes"])
            bars[f"speed-up >= {SPEED_UP_BAR}"] = row["speed_up"] >= SPEED_UP_BAR
            bars[f"peak <= {most / GIB:.2f} GiB"] = max(row["peak_bytes"]) <= most
    for row in rows:
        row["holds"] = all(holds is not False for holds in row["bars"].values())


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
            f"{1e3 * row['step_seconds']:.1f}",
            f"{1e3 * row['host_seconds']:.0f}",
            f"{row['speed_up']:.2f}",
            f"{row['share']:.3f}",
            f"{row['peak_bytes'][0] / GIB:.1f} {row['peak_bytes'][-1] / GIB:.1f}",
            bars_text(row),
        )
    return table


def show_rivals(rows: list[dict[str, Any]]) -> Table:
    table = Table("n", "m", "schedule", "rival", "step ms", "time", "first peak", "bars")
    table.title = "the rivals; anyrig's time and first peak divided by theirs"
    for row in rows:
        figures = [row.get("not_measured", ""), "", ""]
        if "not_measured" not in row:
            figures = [
                f"{1e3 * row['step_seconds']:.1f}",
                f"{row['anyrig_time_ratio']:.5f}",
                f"{row['anyrig_first_peak_ratio']:.3f}",
            ]
        names = str(row["devices"]), str(row["micro_batches"]), row["schedule"], row["engine"]
        table.add_row(*names, *figures, bars_text(row))
    return table


def bars_text(row: dict[str, Any]) -> str:
    return "\n".join(bar_text(*bar) for bar in row["bars"].items())


def main() -> int:
    if len(sys.argv) == 2:
        print(json.dumps(measure(PipelineRun(**json.loads(sys.argv[1])))))
        return 0
    alone: dict[tuple[int, int], float] = {}
    rows = []
    for run in RUNS:
        key = run.micro_batches, run.steps
        if key not in alone:
            bare = PipelineRun("bare", 1, run.micro_batches, steps=run.steps)
            alone[key] = measure_apart(bare)["step_seconds"]
        rows += [measure_apart(each) for each in (run, *rivals_of(run))]
    judge(rows, alone)
    Console().print(show([row for row in rows if row["engine"] == "anyrig"]))
    Console().print(show_rivals([row for row in rows if row["engine"] != "anyrig"]))
    write_figures("pipeline", rows)
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
