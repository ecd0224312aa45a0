"""Rehearsals whose process the system kills, as it does when this machine's memory is exhausted."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from made_plans import Cluster

from anyrig.cli.group_end import error_of_group
from anyrig.errors import PlanningError
from anyrig.planning.answering import Answer, Question, Questions, answer_all
from anyrig.planning.arrangement import PIPELINE, VARIABLE
from anyrig.planning.arrangements import arrangements_on
from anyrig.planning.candidate import Verdict
from anyrig.planning.kept_results import KeptResults
from anyrig.planning.plan_search import SPEED, PlanSearch
from anyrig.planning.plan_table import describe_search
from anyrig.planning.planning import Planning
from anyrig.planning.rehearsed_value import Order
from anyrig.processes.failure import GroupFailure
from anyrig.processes.launcher import GroupResult
from anyrig.processes.rank_end import Ending, RankEnd
from anyrig.programs.program import Program
from anyrig.rehearsal.comparison.compared_rig import Outcome, compare_rig, was_killed
from anyrig.rehearsal.comparison.rehearsed_apart import RehearsedApart
from anyrig.rehearsal.comparison.table import describe_fit
from anyrig.virtual.rig import VirtualRig

RIG = VirtualRig.parse("8xA100-80GB")
# Is killed the first time, once another process has begun, or always; fails if one runs beside it.
SCRIPT = """
import os, pathlib, signal, sys, time
folder, name, when, file = pathlib.Path(sys.argv[1]), *sys.argv[2:]
with open(folder / f"{name}.begun", "a") as begun:
    begun.write("1")
while when == "together" and len([*folder.glob("*.begun")]) < 2:
    time.sleep(0.01)
if when == "always" or (folder / f"{name}.begun").stat().st_size == 1:
    os.kill(os.getpid(), signal.SIGKILL)
(folder / "runs").mkdir()
time.sleep(0.2)
(folder / "runs").rmdir()
pathlib.Path(file).write_text('{"memory": []}')
"""


@dataclass(frozen=True)
class KilledOrder(Order):
    """An order for a process that is killed."""

    folder: str = ""
    when: str = "together"

    def words(self, file: Path) -> list[str]:
        return ["-c", SCRIPT, self.folder, str(self.program["name"]), self.when, str(file)]


def ask(folder: Path, names: Sequence[str], when: str) -> tuple[list[RehearsedApart], list[str]]:
    """Answer a question for each name, and return the answers and the names as they began."""
    ended, began = [], []

    def questions(name: str) -> Questions:
        order = KilledOrder({"name": name}, "", 3, None, {}, folder=str(folder), when=when)
        answer: Answer = yield Question(order, lambda: began.append(name))
        ended.append(answer.ended)

    results = KeptResults(folder / "kept", "hash")
    answer_all([questions(name) for name in names], results, processes=2)
    return ended, began


def test_rehearsals_that_were_killed_side_by_side_run_again_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, began = ask(tmp_path, ["first", "second"], "together")
    assert [one.status for one in ended] == [0, 0]
    assert sorted(began) == ["first", "first", "second", "second"]
    assert "from now on, one runs at a time" in capsys.readouterr().err


def test_one_that_is_killed_alone_is_not_kept(tmp_path: Path) -> None:
    ended, began = ask(tmp_path, ["first"], "always")
    assert [one.status for one in ended] == [-signal.SIGKILL]
    assert began == ["first", "first"]
    assert not (tmp_path / "kept").exists()


@dataclass(frozen=True)
class Exhausting(Cluster):
    """A cluster whose pipelines, or all plans, take more memory than this machine has."""

    kills_all: bool = False

    def find(self, order: Order) -> RehearsedApart | None:
        if self.kills_all or order.environment[VARIABLE].startswith(PIPELINE):
            return RehearsedApart(-signal.SIGKILL, None, "the last line before")
        return super().find(order)


def planned(results: Cluster, tries: int) -> PlanSearch:
    search = PlanSearch(RIG, arrangements_on(RIG), SPEED, tries)
    planning = Planning(Program("train.py", ()), search, None)
    planning.run(results, lambda arrangement: pytest.fail("nothing is rehearsed"))
    return search


def test_a_plan_whose_rehearsal_was_killed_does_not_count_as_failed() -> None:
    results = Exhausting(Path(), "hash", collective_seconds=0.5)
    search = planned(results, 8)
    unknown = [one for one in search.tried if one.verdict is Verdict.UNKNOWN]
    assert unknown
    assert {one.arrangement.plan for one in unknown} == {PIPELINE}
    assert search.ruled_out == 0
    first, count, line, *_ = describe_search(search)
    assert "0 ran out of memory" in first
    assert count.startswith(f"{len(unknown)} could not be judged")
    assert line.endswith("the system killed its process, as it does when this machine's memory is "
                         "exhausted")  # fmt: skip
    assert "failed" not in "".join([first, count, line])
    with pytest.raises(PlanningError, match="could be rehearsed with none of 10 plans on 8xA100"):
        planned(replace(results, kills_all=True), 40)


def test_a_rank_that_was_killed_is_told_apart_from_one_that_failed() -> None:
    end = RankEnd(
        3, "node0", -signal.SIGKILL, Ending.KILLED, None, None, None, None, None, None, False, None
    )
    error = error_of_group(GroupResult(GroupFailure((), (end,))))
    assert error is not None
    facts = {"error": {"kind": error.kind, "text": error.text, "line": error.line}}
    assert was_killed(1, facts)
    row = compare_rig(RIG, 1, facts, None, None)
    assert row.outcome is Outcome.KILLED
    assert describe_fit(row).startswith("not known: the system killed its process")
    terminated = replace(end, exit_code=-signal.SIGTERM)
    assert error_of_group(GroupResult(GroupFailure((), (terminated,)))) is None
    assert not was_killed(1, {"error": None})
