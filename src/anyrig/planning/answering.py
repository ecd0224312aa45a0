"""Rehearsals that answer questions, several at a time, with what was kept from earlier runs."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

from ..errors import SpreadError
from ..rehearsal.comparison.compared_rig import is_out_of_memory
from ..rehearsal.comparison.rehearsed_apart import RehearsedApart, RunningRehearsal
from .kept_results import KeptResults
from .rehearsed_value import Order

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Question:
    """What to rehearse.

    Attributes:
        order: the rehearsal.
        note: called before it begins, unless its result was kept.
    """

    order: Order
    note: Callable[[], object]


@dataclass(frozen=True)
class Answer:
    """How a rehearsal ended.

    Attributes:
        ended: how it ended.
        was_kept: whether an earlier run had rehearsed it.
    """

    ended: RehearsedApart
    was_kept: bool


# Asks one question after the other; the next may depend on the answer.
Questions = Generator[Question, Answer, None]


@dataclass(frozen=True)
class _Asked:
    questions: Questions
    question: Question

    @classmethod
    def first_of(cls, questions: Questions) -> list[_Asked]:
        """Return the first question, if there is one."""
        try:
            return [cls(questions, next(questions))]
        except StopIteration:
            return []

    def next(self, answer: Answer) -> list[_Asked]:
        """Return the next question, if there is one."""
        try:
            return [_Asked(self.questions, self.questions.send(answer))]
        except StopIteration:
            return []


def answer_all(asking: Iterable[Questions], results: KeptResults, processes: int) -> None:
    """Rehearse until nothing more is asked.

    Args:
        asking: each asks one question at a time. All are answered concurrently.
        results: where results are kept.
        processes: how many rehearsals run at a time.

    Raises:
        KeyboardInterrupt: this process was interrupted, and so were the rehearsals, by the
            terminal. They have ended.
    """
    ready = deque(one for questions in asking for one in _Asked.first_of(questions))
    running: list[tuple[_Asked, RunningRehearsal]] = []
    try:
        while ready or running:
            while ready and len(running) < processes:
                _begin(ready.popleft(), results, ready, running)
            ended = [each for each in running if each[1].has_ended()]
            for each in ended:
                running.remove(each)
                asked, process = each
                with process:
                    result = process.wait()
                if _is_final(result):
                    results.keep(asked.question.order, result)
                ready.extendleft(asked.next(Answer(result, was_kept=False)))
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


def _is_final(result: RehearsedApart) -> bool:
    """Return whether the same rehearsal would end in the same way.

    One that was refused by `anyrig.spread` would; another failure may be of the moment.
    """
    error = (result.facts or {}).get("error")
    is_refused = error is not None and error["kind"] == SpreadError.__name__
    return result.status == 0 or is_out_of_memory(result.facts) or is_refused


def _begin(
    asked: _Asked,
    results: KeptResults,
    ready: deque[_Asked],
    running: list[tuple[_Asked, RunningRehearsal]],
) -> None:
    """Start a rehearsal, or take its result from an earlier run."""
    order = asked.question.order
    kept = results.find(order)
    if kept is not None:
        ready.extendleft(asked.next(Answer(kept, was_kept=True)))
        return
    asked.question.note()
    environment = {**os.environ, **order.environment}
    running.append((asked, RunningRehearsal(order.words, environment, shows_output=False)))
