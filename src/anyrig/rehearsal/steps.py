"""Notice the steps of a program."""

from __future__ import annotations

from collections.abc import Callable

from torch.optim import Optimizer

from ..observe.census import parameters_of
from ..virtual.record_reading import done_seconds, forget_nodes, host_seconds
from .optimizer_steps import OptimizerSteps
from .step_ends import StepEnd
from .tensors_at_peak import PeakWatch
from .work_log import StepWorks, WorkLog


class EnoughSteps(SystemExit):
    """Ends a program after the requested number of steps, with the exit status 0."""


class StepWatch:
    """Notes the end of each step of this process."""

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
        self._optimizers = OptimizerSteps(self.end_step, self._note_shapes)

    def start(self) -> None:
        """From now on, find out which tensors are in use at peaks of memory."""
        self.peaks.start()

    def follow_optimizers(self) -> None:
        """From now on, note the end of a step whenever an optimizer's `step` returns."""
        self._optimizers.start()

    def stop(self) -> None:
        """Note nothing from now on."""
        self._optimizers.stop()
        self.peaks.stop()
        self._log.stop()

    @property
    def works(self) -> StepWorks | None:
        """What the kernels of one step computed; None before the second step."""
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

    def _note_shapes(self, optimizer: Optimizer) -> None:
        self._log.note_shapes(one.shape for one in parameters_of(optimizer))
