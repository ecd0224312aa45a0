"""`Fitting`: the search for what fits on each of several rigs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..rehearsal.comparison.missing_memory import missing_bytes, with_more_memory
from ..rehearsal.comparison.rehearsed_apart import RehearsedApart
from ..rehearsal.more_memory import last_step
from ..virtual.rig import VirtualRig
from .answering import Answer, Question, Questions, answer_all
from .candidate import Candidate, Verdict, judge
from .fit import STEPS, Fit
from .fitted_rig import FittedRig
from .kept_results import KeptResults
from .refused_questions import check_program, check_variation
from .search import Point, points_of, search


@dataclass
class _Row:
    rig: VirtualRig
    tried: list[Candidate] = field(default_factory=list)
    missing_bytes: int | None = None
    rehearsals: int = 0
    kept_results: int = 0
    is_complete: bool = False

    @property
    def limit_bytes(self) -> int:
        return min(device.memory_bytes for device in self.rig.devices)

    def count(self, answer: Answer) -> RehearsedApart:
        """Count a rehearsal, and return how it ended."""
        self.rehearsals += 1
        self.kept_results += answer.was_kept
        return answer.ended

    def as_fitted(self) -> FittedRig:
        tried = sorted(self.tried, key=lambda one: one.value or 0)
        return FittedRig(
            self.rig,
            tuple(tried),
            self.is_complete,
            self.missing_bytes,
            self.rehearsals,
            self.kept_results,
        )


class Fitting:
    """Answers a question by rehearsals, several at a time.

    ::

        the rig with the most memory    ●──●──●
        the others, from its points            ●──●
                                               ●─────●
    """

    def __init__(
        self, fit: Fit, results: KeptResults, note: Callable[[VirtualRig, int | None], object]
    ) -> None:
        """Rehearse nothing yet.

        Args:
            fit: the question.
            results: results of earlier runs.
            note: called with the rig and the value before each rehearsal.
        """
        self._fit, self._results, self._note = fit, results, note
        self._rows = [_Row(rig) for rig in fit.rigs]

    def rows(self) -> list[FittedRig]:
        """Return what is known so far, in the order of the rigs."""
        return [row.as_fitted() for row in self._rows]

    def run(self) -> None:
        """Rehearse until all rows are complete.

        Raises:
            PlanningError: the program fails before it uses a GPU, or what varies changes nothing.
            KeyboardInterrupt: this process was interrupted. `rows` has what was found before.
        """
        scout = max(self._rows, key=lambda row: row.limit_bytes)
        self._answer([self._questions(scout, ())])
        hints = points_of(scout.tried, scout.limit_bytes)
        others = [row for row in self._rows if row is not scout]
        self._answer([self._questions(row, hints) for row in others])

    def _answer(self, asking: Sequence[Questions]) -> None:
        answer_all(asking, self._results, self._fit.processes)

    def _ask(self, row: _Row, rig: VirtualRig, value: int | None, steps: int = STEPS) -> Question:
        order = self._fit.order(rig, value, steps)
        return Question(order, partial(self._note, row.rig, value))

    def _questions(self, row: _Row, hints: Sequence[Point]) -> Questions:
        """Yield what to rehearse for a row."""
        ended: dict[int | None, RehearsedApart] = {}
        variation = self._fit.variation
        values: Generator[int | None, Candidate, None]
        values = _once() if variation is None else search(variation, row.limit_bytes, hints)
        value = next(values)
        while True:
            ended[value] = row.count((yield self._ask(row, row.rig, value)))
            candidate = self._judge(row.rig, value, ended[value])
            if not self._has_run():  # a failure on this rig only is reported in its row
                check_program(self._fit, row.rig, candidate, ended[value])
            row.tried.append(candidate)
            try:
                value = values.send(candidate)
            except StopIteration:
                break
        check_variation(self._fit, row.tried)
        least = min(row.tried, key=lambda one: one.value or 0)
        before = ended[least.value].facts
        if least.verdict is Verdict.NO and before is not None:
            more, steps = with_more_memory(row.rig), last_step(len(before["steps"]))
            after = row.count((yield self._ask(row, more, least.value, steps)))
            if after.facts is not None:
                row.missing_bytes = missing_bytes(before, after.facts)
        row.is_complete = True

    def _has_run(self) -> bool:
        """Return whether a rehearsal used a GPU."""
        return any(
            not one.verdict.says_nothing_of_memory for row in self._rows for one in row.tried
        )

    def _judge(self, rig: VirtualRig, value: int | None, ended: RehearsedApart) -> Candidate:
        return judge(rig, value, ended, self._fit.prices, self._fit.samples_of(value))


def _once() -> Generator[int | None, Candidate, None]:
    yield None
