"""`Fitting`: the search for what fits on each of several rigs."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field

from ..rehearsal.comparison.compared_rig import is_out_of_memory
from ..rehearsal.comparison.missing_memory import missing_bytes, with_more_memory
from ..rehearsal.comparison.rehearsed_apart import RehearsedApart, RunningRehearsal
from ..virtual.rig import VirtualRig
from .candidate import Candidate, Verdict, judge
from .fit import Fit
from .fitted_rig import FittedRig
from .kept_results import KeptResults
from .refused_questions import check_program, check_variation
from .rehearsed_value import Order
from .search import Point, points_of, search

_POLL_SECONDS = 0.02

# Orders and their values, answered by how the rehearsals ended.
_Question = tuple[int | None, Order]
_Questions = Generator[_Question, RehearsedApart, None]


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
        self._answer([(scout, self._questions(scout, ()))])
        hints = points_of(scout.tried, scout.limit_bytes)
        others = [row for row in self._rows if row is not scout]
        self._answer([(row, self._questions(row, hints)) for row in others])

    def _questions(self, row: _Row, hints: Sequence[Point]) -> _Questions:
        """Yield what to rehearse for a row."""
        ended: dict[int | None, RehearsedApart] = {}
        variation = self._fit.variation
        values: Generator[int | None, Candidate, None]
        values = _once() if variation is None else search(variation, row.limit_bytes, hints)
        value = next(values)
        while True:
            ended[value] = yield value, self._fit.order(row.rig, value)
            candidate = self._judge(row.rig, value, ended[value])
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
            steps = len(before["steps"]) + 1  # to the end of the step that ran out of memory
            more = with_more_memory(row.rig)
            after = yield least.value, self._fit.order(more, least.value, steps)
            if after.facts is not None:
                row.missing_bytes = missing_bytes(before, after.facts)
        row.is_complete = True

    def _judge(self, rig: VirtualRig, value: int | None, ended: RehearsedApart) -> Candidate:
        variation = self._fit.variation
        is_batch = variation is not None and variation.is_batch
        return judge(rig, value, ended, self._fit.prices, is_batch=is_batch)

    def _answer(self, asked: Iterable[tuple[_Row, _Questions]]) -> None:
        """Rehearse for some rows until they ask nothing more."""
        ready = deque(_Asked(row, questions, *next(questions)) for row, questions in asked)
        running: list[tuple[_Asked, RunningRehearsal]] = []
        try:
            while ready or running:
                while ready and len(running) < self._fit.processes:
                    self._begin(ready.popleft(), ready, running)
                ended = [each for each in running if each[1].has_ended()]
                for each in ended:
                    running.remove(each)
                    asked_one, process = each
                    with process:
                        result = process.wait()
                    if result.status == 0 or is_out_of_memory(result.facts):
                        self._results.keep(asked_one.order, result)
                    ready.extendleft(asked_one.next(result))
                if not ended:
                    time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:  # which the rehearsals have got, too
            raise
        except BaseException:
            for _, process in running:
                process.interrupt()
            raise
        finally:
            for _, process in running:
                process.end()

    def _begin(
        self,
        asked: _Asked,
        ready: deque[_Asked],
        running: list[tuple[_Asked, RunningRehearsal]],
    ) -> None:
        """Start a rehearsal, or take its result from an earlier run."""
        asked.row.rehearsals += 1
        kept = self._results.find(asked.order)
        if kept is not None:
            asked.row.kept_results += 1
            ready.extendleft(asked.next(kept))
            return
        self._note(asked.row.rig, asked.value)
        environment = {**os.environ, **asked.order.environment}
        started = RunningRehearsal(asked.order.words, environment, shows_output=False)
        running.append((asked, started))


@dataclass(frozen=True)
class _Asked:
    row: _Row
    questions: _Questions
    value: int | None
    order: Order

    def next(self, result: RehearsedApart) -> list[_Asked]:
        """Return what the row asks next, if it asks anything."""
        try:
            return [_Asked(self.row, self.questions, *self.questions.send(result))]
        except StopIteration:
            return []


def _once() -> Generator[int | None, Candidate, None]:
    yield None
