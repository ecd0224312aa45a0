"""Judge `anyrig fit` by what others ran, or could not run, on real GPUs.

`workloads/public_memory_cases.toml` has the cases, each with its source. Each is rehearsed on its
GPU, as `anyrig fit` does. The bar: no case that ran out of memory is called certain, and at least
90 % of those that ran are called certain or likely.

    python benchmarks/judge_fit.py [--only TEXT] [--less-memory N]

With ``--less-memory N``, the N certain cases with the least memory to spare are rehearsed again, on
plain GPUs of which all that the upper bound adds to a rehearsal is taken away: none may fail.
Results are kept, so that a run goes on where the last one ended. Needs transformers and PEFT.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from anyrig.planning.answering import Question, Questions, answer_all
from anyrig.planning.candidate import Candidate, Verdict, judge
from anyrig.planning.fingerprint import fingerprint
from anyrig.planning.fit import Fit
from anyrig.planning.kept_results import KeptResults
from anyrig.programs.program import Program
from anyrig.rehearsal.comparison.rehearsed_apart import RehearsedApart
from anyrig.units import format_bytes
from anyrig.virtual.rig import VirtualRig
from workloads.figures import bar_text, write_figures
from workloads.public_memory_page import write_page

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "workloads"
SCRIPT, CASES = FOLDER / "public_memory_cases.py", FOLDER / "public_memory_cases.toml"
NEEDED = ("transformers", "peft")
LEAST_SHARE = 0.9


@dataclass(frozen=True)
class Case:
    """A program, a GPU, and whether it ran there.

    Attributes:
        name: the program.
        rig: the text of the GPU.
        ran: whether it ran.
        source: where that was published.
        date: when.
        arguments: those of `public_memory_cases.py`.
        undetermined: what the source leaves open, if the verdict depends on it; then the case does
            not count.
    """

    name: str
    rig: str
    ran: bool
    source: str
    date: str
    arguments: str
    undetermined: str = ""


@dataclass(frozen=True)
class Judged:
    """A case, and what its rehearsal says. None means that the rehearsal ran out of memory.

    Attributes:
        case: the case.
        candidate: the verdict.
        peak_bytes: the memory that the GPU held, in all.
        bound_bytes: the upper bound.
        outside_bytes: the part of it that PyTorch's allocator did not hold.
    """

    case: Case
    candidate: Candidate
    peak_bytes: int | None
    bound_bytes: int | None
    outside_bytes: int

    @property
    def is_right(self) -> bool:
        """Whether the verdict is what the bar asks for, or does not count."""
        verdict = self.candidate.verdict
        if self.case.undetermined:
            return True
        if self.case.ran:
            return verdict in (Verdict.CERTAIN, Verdict.LIKELY)
        return verdict in (Verdict.NO, Verdict.LIKELY)

    def as_json(self) -> dict[str, Any]:
        return {
            **vars(self.case),
            "verdict": self.candidate.verdict.value,
            "error": self.candidate.found.error
            if self.candidate.verdict is Verdict.FAILED
            else None,
            "peak_bytes": self.peak_bytes,
            "bound_bytes": self.bound_bytes,
        }


def rehearse(case: Case) -> Judged:
    program, rig = Program(str(SCRIPT), tuple(case.arguments.split())), VirtualRig.parse(case.rig)
    fit = Fit(program, (rig,), None, None)
    found: list[RehearsedApart] = []

    def questions() -> Questions:
        note = partial(print, f"rehearsing {case.name} on {case.rig}", flush=True)
        found.append((yield Question(fit.order(rig, None), note)).ended)

    answer_all([questions()], KeptResults.in_cache(fingerprint(program, os.environ)), 1)
    candidate = judge(rig, None, found[0], None)
    if not candidate.fits or found[0].facts is None:
        return Judged(case, candidate, None, None, 0)
    device = found[0].facts["devices"][0]
    peak = device["peak"]
    spare = candidate.spare_bytes or 0
    outside = (peak["context_bytes"] or 0) + (peak["collective_bytes"] or 0)
    return Judged(case, candidate, peak["total_bytes"], device["capacity_bytes"] - spare, outside)


def with_less_memory(judged: Judged) -> Case:
    """Return a certain case on a plain GPU, which has no context, less what the bound adds."""
    capacity = VirtualRig.parse(judged.case.rig).devices[0].memory_bytes
    added = (judged.bound_bytes or 0) - (judged.peak_bytes or 0)
    left = capacity - judged.outside_bytes - added
    return replace(judged.case, rig=f"{left}B")


def print_table(rows: Sequence[Judged]) -> None:
    table = Table("case", "GPU", "truth", "verdict", "peak", "upper bound", "source")
    for row in rows:
        verdict = row.candidate.verdict.value
        sizes = [
            "-" if size is None else format_bytes(size)
            for size in (row.peak_bytes, row.bound_bytes)
        ]
        table.add_row(
            row.case.name,
            row.case.rig,
            ("ran" if row.case.ran else "out of memory")
            + (", undetermined" if row.case.undetermined else ""),
            verdict if row.is_right else f"[bold red]{verdict}[/]",
            *sizes,
            f"{row.case.source}, {row.case.date}",
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def main() -> int:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(f"nothing to do without {' and '.join(missing)}; use: pip install {' '.join(NEEDED)}")
        return 0
    flags = argparse.ArgumentParser()
    flags.add_argument("--only", default="", help="the cases with this in their name")
    flags.add_argument("--less-memory", type=int, default=0, metavar="N")
    given = flags.parse_args()
    cases = [Case(**one) for one in tomllib.loads(CASES.read_text())["case"]]
    rows = [rehearse(case) for case in cases if given.only in case.name]
    print_table(rows)
    counted = [row for row in rows if not row.case.undetermined]
    failed = [row for row in counted if not row.case.ran]
    ran = [row for row in counted if row.case.ran]
    certain = [row for row in failed if row.candidate.verdict is Verdict.CERTAIN]
    right = sum(row.is_right for row in ran)
    share = right / len(ran) if ran else 1.0
    wrong = f"{len(certain)} of {len(failed)} that ran out of memory are called certain"
    print(bar_text(wrong, not certain))
    found = f"{right} of {len(ran)} that ran are called certain or likely"
    print(bar_text(found, share >= LEAST_SHARE))
    again = [row for row in rows if row.candidate.verdict is Verdict.CERTAIN]
    again.sort(key=lambda row: row.candidate.spare_bytes or 0)
    less = [rehearse(with_less_memory(row)) for row in again[: given.less_memory]]
    if less:
        print_table(less)
        fit = sum(row.candidate.fits for row in less)
        print(bar_text(f"{fit} of {len(less)} fit with less memory", fit == len(less)))
    if not given.only:
        write_figures(
            "fit_cases",
            [row.as_json() for row in rows],
            with_less_memory=[row.as_json() for row in less],
        )
        write_page()
    holds = not certain and share >= LEAST_SHARE and all(row.candidate.fits for row in less)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
