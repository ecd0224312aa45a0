"""Notice the steps of a program."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from ..virtual.record_reading import done_seconds, forget_nodes, host_seconds
from .step_ends import StepEnd
from .tensors_at_peak import PeakWatch
from .work_log import StepWorks, WorkLog


class EnoughSteps(SystemExit):
    """Ends a program after the requested number of steps, with the exit status 0."""


class StepWatch:
    """Notes the end of each step of this process.

    A step ends when an optimizer's `step` returns. If there are several optimizers, the first one
    counts: that of the discriminator, say, for a discriminator and a generator.
    """

    def __init__(
        self,
        take_loaded: Callable[[], tuple[int | None, float]],
        most_steps: int | None = None,
    ) -> None:
        """Watch nothing yet.

        Args:
            take_loaded: returns the samples loaded and the seconds waited since the last call.
            most_steps: end the program after this many steps.
        """
        self.ends: list[StepEnd] = []
        self._take_loaded = take_loaded
        self._most_steps = most_steps
        self._log = WorkLog()
        self.peaks = PeakWatch()
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._handle: RemovableHandle | None = None

    def start(self) -> None:
        """From now on, find out which tensors are in use at peaks of memory."""
        self.peaks.start()

    def follow_optimizers(self) -> None:
        """From now on, note the end of a step whenever an optimizer's `step` returns."""
        self._handle = register_optimizer_step_post_hook(self._after_optimizer)

    def stop(self) -> None:
        """Note nothing from now on."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self.peaks.stop()
        self._log.stop()

    @property
    def works(self) -> StepWorks | None:
        """What the kernels of one of the steps computed; None before the second step."""
        return self._log.works

    def end_step(self) -> None:
        """Note the end of a step.

        Raises:
            EnoughSteps: it was the last requested step.
        """
        self.ends.append(StepEnd(done_seconds(), host_seconds(), *self._take_loaded()))
        forget_nodes()
        self.peaks.end_step()
        self._log.end_step(len(self.ends))
        if self._most_steps is not None and len(self.ends) >= self._most_steps:
            self.stop()
            raise EnoughSteps(0)

    def _after_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        first = None if self._optimizer is None else self._optimizer()
        if first is None:
            self._optimizer = weakref.ref(optimizer)
            groups = optimizer.param_groups
            self._log.note_shapes(one.shape for group in groups for one in group["params"])
        elif first is not optimizer:
            return
        self.end_step()
