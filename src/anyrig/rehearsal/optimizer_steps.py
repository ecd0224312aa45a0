"""Follow the steps of the program's first optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch.optim import Optimizer

from ..observe.events import Events
from ..observe.hooks import Observer


class OptimizerSteps(Observer):
    """Calls a function whenever the `step` of the first optimizer returns.

    If there are several optimizers, the first one that takes a step counts: that of the
    discriminator, say, for a discriminator and a generator.
    """

    def __init__(
        self,
        on_step: Callable[[], None],
        on_first: Callable[[Optimizer], None] | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> None:
        """Follow nothing yet.

        `on_first` is called with the optimizer when it is known, `on_begin` when a step begins.
        """
        self._on_step, self._on_first, self._on_begin = on_step, on_first, on_begin
        self._optimizer: weakref.ref[Optimizer] | None = None
        begun = None if on_begin is None else self._before_step
        super().__init__(Events(step_begun=begun, step_ended=self._after_step))

    def _is_first(self, optimizer: Optimizer) -> bool:
        first = None if self._optimizer is None else self._optimizer()
        if first is None:
            self._optimizer = weakref.ref(optimizer)
            if self._on_first is not None:
                self._on_first(optimizer)
        return first is None or first is optimizer

    def _before_step(self, optimizer: Optimizer) -> None:
        if self._on_begin is not None and self._is_first(optimizer):
            self._on_begin()

    def _after_step(self, optimizer: Optimizer) -> None:
        if self._is_first(optimizer):
            self._on_step()
