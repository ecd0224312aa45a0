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

from anyrig.hardware import StepKind
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
DIGITS = 3
NAMED = ("model", "torch", "layout", "image_size", "batch", "dtype", "trains")


def figures_of_kind(kind: StepKind) -> dict[str, Any]:
    """Return what `state_step_errors.py` reads."""
    about = ("on_matrix_units", "convolves", "trains")
    return {"known": kind.known.value, **{name: getattr(kind, name) for name in about}}


def judged_steps(name: str) -> Iterator[dict[str, Any]]:
    """Yield the GPU, what names the program, and its measured and predicted milliseconds."""
    by_gpu: dict[str, list[dict[str, Any]]] = {}
    for step in read_programs(name):
        if name in IN_NO_FIT or not fits(step["model"]):
            by_gpu.setdefault(step.get("gpu", "RTX-3090"), []).append(step)
    for gpu, steps in by_gpu.items():
        programs = Programs(steps, gpu)
        predicted = np.round(programs.predict(), DIGITS).tolist()
        for step, virtual_ms, kind in zip(steps, predicted, programs.kinds(), strict=True):
            named = {key: step[key] for key in NAMED if key in step}
            times = {"ms": step["ms"], "virtual_ms": virtual_ms}
            yield {"gpu": gpu, **named, **times, **figures_of_kind(kind)}


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
