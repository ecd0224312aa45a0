"""Measure `anyrig rehearse`: from the command to the report, and what watching costs.

1. GPT-2 with 124 million parameters, without data: the time until the report is written.
2. A transformer of 69 billion parameters, FSDP2 over 64 ranks (`--ranks`): the time until the
   report is written, and the memory of the process.
3. What watching adds to a rehearsal: the processor time of the command with its summary, against
   the same command with `--quiet`, which records nothing. The two alternate.

The times of 1 and 2 are those of the clock, on all cores. The figures go to `results`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import anyrig
from workloads.figures import bar_text, write_figures

SCRIPT = str(Path(__file__).parent / "workloads" / "rehearsed_training.py")
RIG, NODE, RANKS = "A100-80GB", "8xA100-80GB", 64
PAIRS = 3
GPT2_BAR_SECONDS = 15.0
SHARDED_BAR_SECONDS, SHARDED_BAR_BYTES = 60.0, 2 * 2**30
WATCHING_BAR = 0.10
# What is watched: the flags, the model and the number of its steps.
WATCHED = {
    "GPT-2, without data": (["--shape-only"], "gpt2", 30),
    "three small layers": ([], "small", 3000),
}


@dataclass(frozen=True)
class Cost:
    """What a command took.

    Attributes:
        seconds: by the clock.
        processor_seconds: of all its threads.
        host_bytes: the most memory that it held.
    """

    seconds: float
    processor_seconds: float
    host_bytes: int


def rehearse(*words: str, rig: str = RIG, **environment: str) -> Cost:
    """Run `anyrig rehearse` in a process of its own, and return what it took."""
    command = [sys.executable, "-m", "anyrig", "rehearse", "--rig", rig, *words]
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def report(model: str, steps: int, *flags: str, rig: str = RIG) -> tuple[Cost, int]:
    """Rehearse a model without data; return the cost, and the size of the report."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        words = ["--shape-only", "--report", str(page), *flags, SCRIPT, model, str(steps)]
        cost = rehearse(*words, rig=rig)
        return cost, page.stat().st_size


def watch(flags: list[str], model: str, steps: int) -> dict[str, float]:
    """Return the processor time with and without watching: medians, and the cost as a part."""
    words = [*flags, SCRIPT, model, str(steps)]

    def processor_seconds(*more: str) -> float:
        return rehearse(*more, *words, OMP_NUM_THREADS="1").processor_seconds

    pairs = [(processor_seconds(), processor_seconds("--quiet")) for _ in range(PAIRS)]
    watched, plain = (statistics.median(times) for times in zip(*pairs, strict=True))
    cost = statistics.median(first / second - 1 for first, second in pairs)
    return {"watched_seconds": watched, "plain_seconds": plain, "cost": cost}


def main() -> int:
    table = Table("rehearsal", "measured", "bar")
    rows: list[dict[str, object]] = []
    verdicts = []
    gpt2, size = report("gpt2", 5)
    holds = gpt2.seconds < GPT2_BAR_SECONDS
    verdicts.append(holds)
    rows.append({"rehearsal": "GPT-2 124M, 5 steps", **asdict(gpt2), "report_bytes": size})
    table.add_row(
        "GPT-2 124M, 5 steps, with a report",
        f"{gpt2.seconds:.1f} s",
        bar_text(f"{GPT2_BAR_SECONDS:g} s", holds),
    )
    sharded, size = report("sharded", 3, "--ranks", str(RANKS), rig=NODE)
    holds = sharded.seconds < SHARDED_BAR_SECONDS and sharded.host_bytes < SHARDED_BAR_BYTES
    verdicts.append(holds)
    rows.append(
        {"rehearsal": f"69e9, FSDP2 over {RANKS} ranks", **asdict(sharded), "report_bytes": size}
    )
    table.add_row(
        f"69e9 parameters, FSDP2 over {RANKS} ranks, 3 steps, with a report",
        f"{sharded.seconds:.1f} s, {anyrig.units.format_bytes(sharded.host_bytes)}",
        bar_text(f"{SHARDED_BAR_SECONDS:g} s, 2 GiB", holds),
    )
    for title, (flags, model, steps) in WATCHED.items():
        found = watch(flags, model, steps)
        holds = found["cost"] <= WATCHING_BAR
        verdicts.append(holds)
        rows.append({"watching": title, "steps": steps, **found})
        table.add_row(
            f"watching {title}, {steps} steps",
            f"{100 * found['cost']:.1f} % of {found['plain_seconds']:.1f} s",
            bar_text(f"{100 * WATCHING_BAR:g} %", holds),
        )
    Console().print(table)
    write_figures("rehearsal", rows, rig=RIG, processors=os.cpu_count(), pairs=PAIRS)
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
