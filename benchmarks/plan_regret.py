"""How far the plan that `anyrig plan` finds is from the best of all plans, by the same clock.

For each program, the search ends after at most 40 rehearsals. Then other plans are rehearsed: all,
or so many at random as the command line says. Results are kept, so that a run goes on where the
last one ended.

    python benchmarks/plan_regret.py [PROGRAM@RIG …] [--others N]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anyrig.planning.answering import Question, answer_all
from anyrig.planning.arrangement import Arrangement
from anyrig.planning.arrangements import arrangements_on
from anyrig.planning.fingerprint import fingerprint
from anyrig.planning.kept_results import KeptResults
from anyrig.planning.plan_search import SPEED, PlanSearch
from anyrig.planning.planning import Planning
from anyrig.planning.tried import Tried
from anyrig.programs.program import Program
from anyrig.virtual.rig import VirtualRig
from workloads.figures import bar_text, write_figures

SCRIPT = str(Path(__file__).parent / "workloads" / "planned_training.py")
DEFAULT = ("small@2xA100-80GB",)
MOST_TRIES, BAR, PROCESSES = 40, 0.02, 2


def note(arrangement: Arrangement) -> None:
    print(f"rehearsing {arrangement} by {arrangement.processes} processes", flush=True)


def rehearse_others(
    planning: Planning, results: KeptResults, others: list[Arrangement]
) -> list[Tried]:
    left, found = iter(others), []

    def questions():
        for one in left:
            answer = yield Question(planning.order(one), lambda one=one: note(one))
            found.append(Tried.of(planning.search.rig, one, answer.ended, None))

    answer_all([questions() for _ in range(PROCESSES)], results, PROCESSES)
    return found


def measure(program: str, rig: str, count: int | None) -> dict[str, object]:
    parsed = VirtualRig.parse(rig)
    search = PlanSearch(parsed, arrangements_on(parsed), SPEED, MOST_TRIES)
    command = Program(SCRIPT, (program,))
    planning = Planning(command, search, None, PROCESSES)
    results = KeptResults.in_cache(fingerprint(command, os.environ))
    planning.run(results, note)
    best = search.ranked()[0]
    tried = {one.arrangement for one in search.tried}
    left = [
        one
        for one in search.arrangements
        if one not in tried
        and not search.workload.cannot_fit(one, parsed)
        and not search.workload.is_too_fine(one)
    ]
    if count is not None and count < len(left):
        left = random.Random(0).sample(left, count)
    others = [one for one in rehearse_others(planning, results, left) if one.candidate.fits]
    fitting = [*search.ranked(), *others]
    fastest = min(fitting, key=lambda one: one.seconds_for(search.samples) or float("inf"))
    seconds = [one.seconds_for(search.samples) for one in (best, fastest)]
    return {
        "program": program,
        "rig": rig,
        "plans": len(search.arrangements),
        "tried": len(tried),
        "others": len(left),
        "found": str(best.arrangement),
        "found_seconds": seconds[0],
        "best": str(fastest.arrangement),
        "best_seconds": seconds[1],
        "regret": seconds[0] / seconds[1] - 1,
    }


def main() -> int:
    flags = argparse.ArgumentParser()
    flags.add_argument("cases", nargs="*", default=DEFAULT)
    flags.add_argument("--others", type=int)
    given = flags.parse_args()
    rows = [measure(*case.split("@", 1), given.others) for case in given.cases]
    table = Table("program", "rig", "rehearsed", "others", "found", "regret")
    for row in rows:
        regret = bar_text(f"{row['regret']:.2%}", row["regret"] <= BAR)
        names = ("program", "rig", "tried", "others", "found")
        table.add_row(*(str(row[name]) for name in names), regret)
    Console().print(table)
    write_figures("plan_regret", rows)
    return 0 if all(row["regret"] <= BAR for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
