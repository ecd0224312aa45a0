"""One exchange with the workers of a batch: each computes its part, and answers once.

::

    this process     request ─▶        own part      counts of targets     answers
                                           │              ▲ │ total           ▲
    worker           request ─▶ its part ──┴──────────────┘ ▼ ... ────────────┘

The first failure stops the other parts where they next wait for this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....errors import SpreadError
from ...notes import add_note, describe_arguments
from ..replicas.meeting import Stopped
from .link import Segment
from .part_request import Failed, TargetCount, TargetTotal
from .pool import Worker


class Conversation:
    """Asks workers, computes meanwhile, and takes their answers.

    Args:
        workers: the workers that have a part.
        what: what they compute, for messages.
    """

    def __init__(self, workers: Sequence[Worker], what: str) -> None:
        self._workers, self._what = workers, what
        self._answers: dict[Worker, Any] = {}
        self._waiting: list[Worker] = []  # for the total of a count
        self._totals: list[Segment] = []
        self._failure: BaseException | None = None
        self._own: Any = None
        self.targets: list[Tensor] = []  # the totals

    def ask(self, requests: Sequence[Any]) -> list[Segment | None]:
        """Send each worker its request; return the segments that hold the requests' tensors."""
        return [
            worker.ask(request) for worker, request in zip(self._workers, requests, strict=True)
        ]

    def compute(self, own: Callable[[], Any]) -> None:
        """Compute this process's own part, and receive the answers."""
        try:
            self._own = own()
        except (Exception, Stopped) as error:  # raised by `results`, after the others end
            self._failure = error
        for worker in self._workers:
            while worker not in self._answers:
                self._take(worker)
        for segment in self._totals:
            segment.is_free = True

    def _take(self, worker: Worker) -> None:
        if worker not in self._waiting:
            message = worker.receive(self._what)
            if not isinstance(message, TargetCount):
                self._answers[worker] = message
                return
            if self._failure is None:
                self._failure = SpreadError(
                    f"{worker.name} has reached a mean over targets that this process has not; "
                    "every part of a batch must call the same losses in the same order"
                )
        else:
            self._waiting.remove(worker)
        self._keep(worker.send(TargetTotal(None)))

    def _keep(self, segment: Segment | None) -> None:
        if segment is not None:
            self._totals.append(segment)

    def add_up(self, own: Tensor) -> Tensor:
        """Return the sum of what all parts bring, for this process's own part."""
        total = own
        for worker in self._workers:
            message = worker.receive("the number of targets")
            if not isinstance(message, TargetCount):
                self._answers[worker] = message
                raise Stopped
            self._waiting.append(worker)
            total = total + message.own
        self.targets.append(total)
        while self._waiting:
            self._keep(self._waiting.pop(0).send(TargetTotal(total)))
        return total

    def results(self, given: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return this process's result and the answers; raise the first failure of a part.

        `given` has the arguments of each part, for the note of a failure.
        """
        answers = [self._answers[worker] for worker in self._workers]
        if self._failure is not None and not isinstance(self._failure, Stopped):
            places = ["this process", *(worker.name for worker in self._workers)]
            add_note(
                self._failure, f"in {places[0]}, which was given {describe_arguments(given[0])}"
            )
            raise self._failure
        for worker, answer, part in zip(self._workers, answers, given[1:], strict=True):
            if isinstance(answer, Failed) and answer.error is not None:
                error = answer.error.restored()
                add_note(error, f"in {worker.name}, which was given {describe_arguments(part)}")
                raise error
        for worker, answer in zip(self._workers, answers, strict=True):
            if isinstance(answer, Failed) or isinstance(self._failure, Stopped):
                raise SpreadError(
                    f"{worker.name} has not reached a mean over targets that this process has "
                    "reached; every part of a batch must call the same losses in the same order"
                )
        return self._own, answers


def copied(tensor: Tensor) -> Tensor:
    """Return a copy in memory of this process alone."""
    with torch.inference_mode(False):
        return tensor.detach().clone()
