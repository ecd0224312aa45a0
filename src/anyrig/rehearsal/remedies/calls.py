"""The calls of a program's outermost modules and the steps of its optimizers, counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...observe.events import Events
from ...observe.hooks import Observer


class Enough(BaseException):
    """The program has reached the point up to which it is rehearsed."""


class OutermostCalls(Observer):
    """Counts calls of modules that no other module calls, and optimizer steps.

    What a backward pass calls, such as a block that is recomputed, does not count.

    Attributes:
        calls: the calls that have begun.
        steps: the steps that have ended.
        at_begin: called with the module before each call.
        at_end: called after each call, even if it raised.
    """

    def __init__(self, most_calls: int | None, most_steps: int | None) -> None:
        """Begin to count.

        Args:
            most_calls: raise `Enough` before the next call; None for no limit.
            most_steps: raise `Enough` after this step; None for no limit.
        """
        self.calls = self.steps = 0
        self.at_begin: list[Callable[[nn.Module], object]] = []
        self.at_end: list[Callable[[], object]] = []
        self._depth = 0
        self._most_calls, self._most_steps = most_calls, most_steps
        super().__init__(
            Events(module_called=self._begin, module_finished=self._end, step_ended=self._end_step)
        )
        self.start()

    def _begin(self, module: nn.Module, _: Any) -> None:
        # Private, as in `memory.recorder`: the number of the running backward pass.
        if torch._C._current_graph_task_id() != -1:
            return
        if self._depth == 0:
            if self.calls == self._most_calls:
                raise Enough
            self.calls += 1
            for action in self.at_begin:
                action(module)
        self._depth += 1

    def _end(self, module: nn.Module, *_: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            return
        self._depth -= 1
        if self._depth == 0:
            for action in self.at_end:
                action()

    def _end_step(self, *_: Any) -> None:
        self.steps += 1
        if self.steps == self._most_steps:
            raise Enough
