"""How far the plan that `anyrig plan` finds is from the best of all plans, by the same clock.

For each program, the search ends after at most 40 rehearsals. All plans are compared with what it
found, with pipelines of every number of micro-batches up to 64:

    refused or too large    what made a tried plan fail, or more memory than there is
    excluded by bound       the lower bound of the step is within 2 % of what was found, or above
    rehearsed               by the search; and then all others, or so many as the command line says
    not judged              the system killed the rehearsal for the memory of this machine, also
                            when it ran alone

Others are rehearsed in the order of their micro-batches: each tightens the bounds of those with
more. Some of those that the bound excludes are rehearsed at random, to see whether the bound holds.

Results are kept, so that a run goes on where the last one ended. The rows of other programs stay in
the file of results.

    python benchmarks/plan_regret.py [PROGRAM@RIG …] [--possible N] [--excluded N] [--seconds S]
        [--processes N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anyrig.planning.answering import Question, Questions, answer_all
from anyrig.planning.arrangement import Arrangement
from anyrig.planning.arrangements import arrangements_on
from anyrig.planning.candidate import Verdict
from anyrig.planning.fingerprint import fingerprint
from anyrig.planning.kept_results import KeptResults
from anyrig.planning.plan_search import SPEED, PlanSearch
from anyrig.planning.planning import Planning
from anyrig.planning.tried import Tried
from anyrig.programs.program import Program
from anyrig.virtual.rig import VirtualRig
from workloads.figures import bar_text, read_rows, write_figures

SCRIPT = str(Path(__file__).parent / "workloads" / "planned_training.py")
DEFAULT = ("resnet@8xA100-80GB", "gpt2-124m-batch-24@RTX-4090+2xRTX-3090")
MOST_TRIES, MOST_MICRO_BATCHES, BAR = 40, 64, 0.02


def note(arrangement: Arrangement) -> None:
    print(f"rehearsing {arrangement} by {arrangement.processes} processes", flush=True)


def rehearse(
    planning: Planning,
    results: KeptResults,
    chosen: Iterable[Arrangement],
    until: float,
    is_wanted: Callable[[Arrangement], bool] = lambda one: True,
) -> list[Tried]:
    """Return what the rehearsals say that begin before `until`, of `time.monotonic`.

    Those that are not wanted when their turn comes are left out.
    """
    found: list[Tried] = []

    def questions(left: Iterator[Arrangement]) -> Questions:
        for one in left:
            if not is_wanted(one):
                continue
            if time.monotonic() > until and results.find(planning.order(one)) is None:
                continue
            answer = yield Question(planning.order(one), lambda one=one: note(one))
            found.append(Tried.of(planning.search.rig, one, answer.ended, None))
            planning.search.note(found[-1])

    left = iter(chosen)
    answer_all([questions(left) for _ in range(planning.processes)], results, planning.processes)
    return found


def measure(program: str, rig: str, given: argparse.Namespace) -> dict[str, object]:
    parsed, command = VirtualRig.parse(rig), Program(SCRIPT, (program,))
    search = PlanSearch(parsed, arrangements_on(parsed), SPEED, MOST_TRIES)
    planning = Planning(command, search, None, given.processes)
    results = KeptResults.in_cache(fingerprint(command, os.environ))
    planning.run(results, note)
    found, tried = search.ranked()[0], len(search.tried)
    seconds = found.seconds_for(search.samples)
    until = time.monotonic() + given.seconds

    plans = arrangements_on(parsed, micro_batches=range(1, MOST_MICRO_BATCHES + 1))
    search.arrangements = plans

    def left() -> list[Arrangement]:
        return [one for one in search.without_ruled_out(search.left) if is_runnable(one)]

    def is_runnable(one: Arrangement) -> bool:
        return not (search.workload.is_too_fine(one) or search.workload.cannot_fit(one, parsed))

    def may_win(one: Arrangement) -> bool:
        return search.bound(one) * (1 + BAR) < seconds

    excluded = [one for one in left() if not may_win(one)]
    bounds = {one: search.bound(one) for one in excluded}
    sample = random.Random(0).sample(excluded, min(given.excluded, len(excluded)))
    checked = rehearse(planning, results, sample, until)
    possible = sorted(
        filter(may_win, left()), key=lambda one: (one.micro_batches, search.bound(one))
    )
    rehearse(planning, results, possible[: given.possible], until, may_win)

    best = search.ranked()[0]
    best_seconds = best.seconds_for(search.samples)
    ratios = [
        one.seconds_for(search.samples) / bounds[one.arrangement]
        for one in checked
        if one.candidate.fits
    ]
    runnable = left()
    unknown = [one.arrangement for one in search.tried if one.verdict is Verdict.UNKNOWN]
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "program": program,
        "rig": rig,
        "plans": len(plans),
        "refused_or_too_large": len(search.left) - len(runnable),
        "excluded_by_bound": sum(not may_win(one) for one in runnable),
        "tried_by_search": tried,
        "rehearsed_in_all": len(search.tried),
        "not_rehearsed": [str(one) for one in runnable if may_win(one)],
        "not_judged": [str(one) for one in unknown if may_win(one)],
        "excluded_and_rehearsed": len(checked),
        "least_time_to_bound": min(ratios, default=None),
        "found": str(found.arrangement),
        "found_seconds": seconds,
        "best": str(best.arrangement),
        "best_seconds": best_seconds,
        "regret": seconds / best_seconds - 1,
    }


def holds(row: dict[str, object]) -> bool | None:
    """Return whether the bar holds; None if a plan that may be better was not judged."""
    if row["regret"] > BAR or (row["least_time_to_bound"] or 1) < 1:
        return False
    return None if row["not_rehearsed"] or row["not_judged"] else True


def main() -> int:
    flags = argparse.ArgumentParser()
    flags.add_argument("cases", nargs="*", default=DEFAULT)
    flags.add_argument("--possible", type=int, default=10_000)
    flags.add_argument("--excluded", type=int, default=10)
    flags.add_argument("--seconds", type=float, default=float("inf"))
    flags.add_argument("--processes", type=int, default=2)
    given = flags.parse_args()
    rows = []
    for case in given.cases:
        rows.append(measure(*case.split("@", 1), given))
        print(json.dumps(rows[-1]), flush=True)
        own = {(row["program"], row["rig"]) for row in rows}
        others = [
            row for row in read_rows("plan_regret") if (row["program"], row["rig"]) not in own
        ]
        write_figures("plan_regret", [*others, *rows])
    counted = ("plans", "excluded_by_bound", "rehearsed_in_all")
    listed = ("not_rehearsed", "not_judged")
    names = ("plans", "excluded", "rehearsed", "left", "not judged")
    table = Table("program", "rig", *names, "found", "regret")
    for row in rows:
        counts = (*(row[name] for name in counted), *(len(row[name]) for name in listed))
        regret = bar_text(f"{row['regret']:.2%}", holds(row))
        table.add_row(*map(str, (row["program"], row["rig"], *counts, row["found"])), regret)
    Console().print(table)
    return 1 if any(holds(row) is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
