"""Judge the virtual clock by public measurements that no fit has seen.

`python benchmarks/judge_clock.py MEASUREMENTS` compares single operators, by GPU and group of
coefficients. With ``--programs`` it also runs the half of timm's training programs that no fit has
seen, which needs timm, or reads their records with ``--recorded FILE`` (see `fit_clock.py`).
``--grouped FILE`` does so for other models, which have grouped convolutions. The figures go to
`results`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from clock import training_programs
from clock.judgement import Errors, errors_of, judge_rows
from clock.program_records import grouped_programs, measured_programs
from clock.programs import Programs
from workloads.figures import write_figures


def show(title: str, found: list[Errors]) -> None:
    table = Table(title=title)
    for heading in ("GPU", "group", "rows", "median %", "mean %", "90 % below", "bias %"):
        table.add_column(heading, justify="left" if heading in ("GPU", "group") else "right")
    for errors in found:
        table.add_row(*(str(value) for value in asdict(errors).values()))
    Console().print(table)


def judge_programs(figures: str, title: str, programs: Programs) -> None:
    judged = programs.select(lambda model: not training_programs.fits(model))
    predicted = judged.predict()
    ratios = predicted / judged.ms
    show(title, [errors_of("RTX-3090", "timm", ratios)])
    rows = [
        {"model": step["model"], "layout": step["layout"], "ms": step["ms"], "virtual_ms": ms}
        for step, ms in zip(judged.steps, np.round(predicted, 1).tolist(), strict=True)
    ]
    above = sum(abs(ratio - 1) > 0.3 for ratio in ratios)
    print(f"{above} of {len(rows)} are off by more than 30 %")
    write_figures(figures, rows)


def main() -> int:
    if len(sys.argv) < 2:
        print("nothing to do; use: python benchmarks/judge_clock.py MEASUREMENTS")
        return 0
    folder = Path(sys.argv[1])
    found = list(judge_rows(folder))
    show("rows that no fit has seen, above five times the floor", found)
    write_figures("clock-rows", [asdict(errors) for errors in found])
    if "--programs" in sys.argv:
        title = "training programs that no fit has seen"
        judge_programs("clock-programs", title, measured_programs(folder, sys.argv))
    grouped = grouped_programs(folder, sys.argv)
    if grouped is not None:
        title = "training programs with grouped convolutions, channels last, that no fit has seen"
        judge_programs("clock-grouped-programs", title, grouped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
