"""Rehearsals that answer questions, several at a time, with what was kept from earlier runs."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

from ..errors import SpreadError
from ..rehearsal.comparison.compared_rig import is_out_of_memory, was_killed
from ..rehearsal.comparison.rehearsed_apart import RehearsedApart, RunningRehearsal
from .kept_results import KeptResults
from .rehearsed_value import Order

_POLL_SECONDS = 0.02
_ONE_AT_A_TIME = (
    "anyrig: the system killed a rehearsal, as it does when this machine's memory is exhausted; "
    "from now on, one runs at a time, and that one again\n"
)


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


@dataclass(frozen=True)
class _Running:
    asked: _Asked
    process: RunningRehearsal
    at_a_time: int  # how many rehearsals could run when it began


def answer_all(asking: Iterable[Questions], results: KeptResults, processes: int) -> None:
    """Rehearse until nothing more is asked.

    If the system kills a rehearsal, as it does when this machine's memory is exhausted, one runs at
    a time from then on, and that one again.

    Args:
        asking: each asks one question at a time. All are answered concurrently.
        results: where results are kept.
        processes: how many rehearsals run at a time.

    Raises:
        KeyboardInterrupt: this process was interrupted, and so were the rehearsals, by the
            terminal. They have ended.
    """
    ready = deque(one for questions in asking for one in _Asked.first_of(questions))
    running: list[_Running] = []
    try:
        while ready or running:
            while ready and len(running) < processes:
                _begin(ready.popleft(), results, ready, running, processes)
            ended = [each for each in running if each.process.has_ended()]
            for each in ended:
                running.remove(each)
                with each.process:
                    result = each.process.wait()
                if was_killed(result.status, result.facts) and each.at_a_time > 1:
                    sys.stderr.write(_ONE_AT_A_TIME)
                    processes = 1
                    ready.appendleft(each.asked)
                    continue
                if _is_final(result):
                    results.keep(each.asked.question.order, result)
                ready.extendleft(each.asked.next(Answer(result, was_kept=False)))
            if not ended:
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:  # which the rehearsals have got, too
        raise
    except BaseException:
        for each in running:
            each.process.interrupt()
        raise
    finally:
        for each in running:
            each.process.end()


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
    running: list[_Running],
    at_a_time: int,
) -> None:
    """Start a rehearsal, or take its result from an earlier run."""
    order = asked.question.order
    kept = results.find(order)
    if kept is not None:
        ready.extendleft(asked.next(Answer(kept, was_kept=True)))
        return
    asked.question.note()
    environment = {**os.environ, **order.environment}
    process = RunningRehearsal(order.words, environment, shows_output=False)
    running.append(_Running(asked, process, at_a_time))
