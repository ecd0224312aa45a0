"""Judge the virtual clock by whole steps that others measured and no fit has seen.

`python benchmarks/judge_steps.py run` reads the programs in ``clock/records``: of timm's models the
half, by a checksum of their names, that took no part in a fit, and all of torchvision's. The
figures go to `results`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from clock.judgement import errors_of
from clock.programs import Programs
from clock.recorded_programs import read_programs
from clock.training_programs import fits
from workloads.figures import write_figures

# By file of ``clock/records``: the file of figures.
FIGURES = {
    "inference": "clock-inference-programs",
    "training": "clock-programs",
    "grouped": "clock-grouped-programs",
    "torchvision": "clock-torchvision-programs",
}
IN_NO_FIT = {"torchvision"}
NAMED = ("model", "torch", "layout", "image_size", "batch", "dtype", "trains")


def judged_steps(name: str) -> Iterator[dict[str, Any]]:
    """Yield the GPU, what names the program, and its measured and predicted milliseconds."""
    by_gpu: dict[str, list[dict[str, Any]]] = {}
    for step in read_programs(name):
        if name in IN_NO_FIT or not fits(step["model"]):
            by_gpu.setdefault(step.get("gpu", "RTX-3090"), []).append(step)
    for gpu, steps in by_gpu.items():
        predicted = np.round(Programs(steps, gpu).predict(), 1).tolist()
        for step, virtual_ms in zip(steps, predicted, strict=True):
            named = {key: step[key] for key in NAMED if key in step}
            yield {"gpu": gpu, **named, "ms": step["ms"], "virtual_ms": virtual_ms}


def main() -> int:
    if sys.argv[1:] != ["run"]:
        print("nothing to do; use: python benchmarks/judge_steps.py run")
        return 0
    for name, figures in FIGURES.items():
        rows = list(judged_steps(name))
        for gpu in dict.fromkeys(row["gpu"] for row in rows):
            ratios = [row["virtual_ms"] / row["ms"] for row in rows if row["gpu"] == gpu]
            print(name, errors_of(gpu, "steps", ratios), f"largest {max(ratios) - 1:.0%}")
        write_figures(figures, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
