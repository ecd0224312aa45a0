"""Judge the virtual clock by public measurements that no fit has seen.

`python benchmarks/judge_clock.py MEASUREMENTS` compares single operators, by GPU and group of
coefficients. The figures go to `results`. `judge_steps.py` judges by whole programs.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from clock.judgement import Errors, judge_rows
from workloads.figures import write_figures


def show(title: str, found: list[Errors]) -> None:
    table = Table(title=title)
    for heading in ("GPU", "group", "rows", "median %", "mean %", "90 % below", "bias %"):
        table.add_column(heading, justify="left" if heading in ("GPU", "group") else "right")
    for errors in found:
        table.add_row(*(str(value) for value in asdict(errors).values()))
    Console().print(table)


def main() -> int:
    if len(sys.argv) < 2:
        print("nothing to do; use: python benchmarks/judge_clock.py MEASUREMENTS")
        return 0
    folder = Path(sys.argv[1])
    found = list(judge_rows(folder))
    show("rows that no fit has seen, above five times the floor", found)
    write_figures("clock-rows", [asdict(errors) for errors in found])
    return 0


if __name__ == "__main__":
    sys.exit(main())
