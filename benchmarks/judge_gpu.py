"""Judge virtual GPUs by what `measure_gpu.py` measured on a real one of the same name.

`python benchmarks/judge_gpu.py FILE …` takes the files of one GPU, runs the same on the virtual
one, prints the errors of times and the differences of allocations, and writes the figures to
``results/gpu-<GPU>.json``. Needs timm, and takes some minutes.
"""

from __future__ import annotations

import difflib
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from anyrig.hardware import find_spec
from workloads.figures import write_figures

PARTS = ("host", "copies", "kernels", "programs")


def predict(rig: str) -> dict[str, Any]:
    """Run each part on a virtual GPU, in a process of its own as on the real one."""
    found: dict[str, Any] = {}
    for part in PARTS:
        script = str(Path(__file__).with_name("measure_gpu.py"))
        command = [sys.executable, script, "--rig", rig, "--only", part]
        finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found |= json.loads(finished.stdout.splitlines()[-1])
    return found


def difference(predicted: float, measured: float) -> float:
    """Return the difference in percent of what was measured."""
    return round(100 * (predicted / measured - 1), 1)


def compare_kernels(
    measured: list[dict[str, Any]], predicted: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return one row for each operator and dtype."""
    known = {(r["name"], r["dtype"], tuple(r["sizes"])): r.get("ms") for r in predicted}
    errors = defaultdict(list)
    for row in measured:
        virtual_ms = known.get((row["name"], row["dtype"], tuple(row["sizes"])))
        if virtual_ms is not None and row.get("ms") is not None:
            key = (row["family"], row["name"], row["dtype"])
            errors[key].append(difference(virtual_ms, row["ms"]))
    return [
        {
            "family": family,
            "name": name,
            "dtype": dtype,
            "rows": len(found),
            "median_error_percent": round(statistics.median(map(abs, found)), 1),
            "bias_percent": round(statistics.median(found), 1),
        }
        for (family, name, dtype), found in errors.items()
    ]


def compare_programs(
    measured: list[dict[str, Any]], predicted: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return one row for each program that ran on both."""
    known = {program["name"]: program for program in predicted if "error" not in program}
    rows = []
    for real in measured:
        virtual = known.get(real["name"])
        if virtual is None or "error" in real:
            continue
        allocations, virtual_allocations = (
            [size for action, size in program["events"] if action == "+"]
            for program in (real, virtual)
        )
        matcher = difflib.SequenceMatcher(None, allocations, virtual_allocations, autojunk=False)
        rows.append(
            {
                "name": real["name"],
                "step_ms": round(real["step_ms"], 2),
                "kernel_ms": real["kernel_ms"] and round(real["kernel_ms"], 2),
                "virtual_step_ms": round(virtual["step_ms"], 2),
                "virtual_kernel_ms": round(virtual["kernel_ms"], 2),
                "kernel_difference_percent": real["kernel_ms"]
                and difference(virtual["kernel_ms"], real["kernel_ms"]),
                "allocations": len(allocations),
                "virtual_allocations": len(virtual_allocations),
                "equal_allocations": sum(block.size for block in matcher.get_matching_blocks()),
                "peak_allocated_bytes": real["peak_allocated_bytes"],
                "peak_difference_percent": difference(
                    virtual["peak_allocated_bytes"], real["peak_allocated_bytes"]
                ),
                "peak_reserved_bytes": real["peak_reserved_bytes"],
                "reserved_difference_percent": difference(
                    virtual["peak_reserved_bytes"], real["peak_reserved_bytes"]
                ),
            }
        )
    return rows


def compare_calls(
    measured: list[dict[str, Any]], predicted: list[dict[str, Any]], unit: str
) -> list[dict[str, Any]]:
    """Return the measured rows, each with its prediction."""
    return [
        {**real, unit: round(real[unit], 3), f"virtual_{unit}": round(virtual[unit], 3)}
        for real, virtual in zip(measured, predicted, strict=True)
    ]


def show(title: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table(*[name.replace("_", " ") for name in rows[0]], title=title)
    for row in rows:
        table.add_row(*["" if value is None else f"{value}" for value in row.values()])
    Console(width=200).print(table)


def main() -> int:
    if len(sys.argv) < 2:
        print("nothing to do; use: python benchmarks/judge_gpu.py FILE …")
        return 0
    real: dict[str, Any] = {}
    for name in sys.argv[1:]:
        real |= json.loads(Path(name).read_text())
    spec = find_spec(real["gpu"])
    if spec is None:
        print(
            f"no virtual GPU is called {real['gpu']!r}; src/anyrig/hardware/specs.toml lists them"
        )
        return 1
    virtual = predict(spec.key)
    kernels = compare_kernels(real.get("kernels", []), virtual["kernels"])
    programs = compare_programs(real.get("programs", []), virtual["programs"])
    show("kernels", kernels)
    show("programs", programs)
    about = ("gpu", "date", "torch", "cuda", "cudnn", "driver", "total_bytes", "context_bytes")
    write_figures(
        f"GPU-{spec.key.lower()}",
        [*kernels, *programs],
        measured_on={name: real.get(name) for name in about},
        host=compare_calls(real["host"], virtual["host"], "us") if "host" in real else [],
        copies=compare_calls(real["copies"], virtual["copies"], "ms") if "copies" in real else [],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
