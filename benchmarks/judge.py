"""Watch the virtual clock: judge it by all measurements in this repository.

`python benchmarks/judge.py run` compares the mean error of each GPU and kind of program with that
in `results/judge.json`, and fails if one got worse by two points. `quick` leaves out what runs
whole programs, and takes half a minute. `write` writes what it judged to the file. No fit has seen
the measurements that judge:

    steps                      `judge_steps.py`: whole steps, from their recorded work
    kernels                    our own of an H100 (`measure_gpu.py`)
    language models            `judge_language_models.py`, by the labels in its figures
    iterations                 `judge_iterations.py`; ResNet-50's only where timm is installed
    published steps            `judge_published_steps.py`: training runs of others, some on 8 GPUs
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict

import judge_iterations
import judge_language_models
import judge_published_steps
from clock import gpu_fits, gpu_rows
from clock.mean_errors import MOST_WORSE, MeanError, Ratio, lines_of_worse, mean_errors
from judge_steps import FIGURES, judged_steps
from workloads.figures import RESULTS, write_figures

FILE = RESULTS / "judge.json"


def quick_ratios() -> Iterator[Ratio]:
    for name in FIGURES:
        for row in judged_steps(name):
            kind = f"steps, {name}, {row.get('dtype', row['layout'])}"
            yield row["gpu"], kind, row["virtual_ms"] / row["ms"]
    for group, ratios in gpu_fits.judged_ratios(gpu_rows.recorded_rows()).items():
        for ratio in ratios:
            yield gpu_rows.GPU, f"kernels, {group}", float(ratio)


def slow_ratios() -> Iterator[Ratio]:
    rows = json.loads((RESULTS / "clock-language-models.json").read_text())["rows"]
    by_gpu = defaultdict(list)
    for row in rows:
        by_gpu[row["gpu"]].append(row)
    for gpu, labels in by_gpu.items():
        for label, ms in zip(labels, judge_language_models.predict(gpu, labels), strict=True):
            kind = f"language models, {'training' if label['trains'] else 'inference'}"
            yield gpu, kind, ms / label["ms"]
    for name, (gpu, ms) in judge_iterations.ITERATIONS.items():
        if "ResNet" not in name or importlib.util.find_spec("timm") is not None:
            yield gpu, f"iterations, {name}", judge_iterations.predict(name) / ms
    for row in judge_published_steps.PUBLISHED:
        kind = f"published steps, {row.name.partition(',')[0]}"
        yield row.gpu, kind, judge_published_steps.predict(row) / row.seconds


def main() -> int:
    if sys.argv[1:] not in (["run"], ["quick"], ["write"]):
        print("nothing to do; use: python benchmarks/judge.py run, quick or write")
        return 0
    found = mean_errors(quick_ratios())
    if sys.argv[1] != "quick":
        found += mean_errors(slow_ratios())
    for error in found:
        print(f"{error.gpu:20s} {error.kind:45s} {error.compared:4d} {error.mean:6.1f} %")
    known = [MeanError(**row) for row in json.loads(FILE.read_text())["rows"]]
    if sys.argv[1] == "write":
        judged = {(error.gpu, error.kind) for error in found}
        kept = [error for error in known if (error.gpu, error.kind) not in judged]
        write_figures("judge", [asdict(error) for error in [*found, *kept]])
        return 0
    lines = lines_of_worse(found, known)
    for line in lines:
        print(line, file=sys.stderr)
    if lines:
        print(
            f"{len(lines)} mean errors got worse by {MOST_WORSE:g} points; mend what changed the"
            " times or, if it is meant, run python benchmarks/judge.py write",
            file=sys.stderr,
        )
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
