"""Follow the steps of the program's first optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle


class OptimizerSteps:
    """Calls a function whenever the `step` of the first optimizer returns.

    If there are several optimizers, the first one that takes a step counts: that of the
    discriminator, say, for a discriminator and a generator.
    """

    def __init__(
        self, on_step: Callable[[], None], on_first: Callable[[Optimizer], None] | None = None
    ) -> None:
        """Follow nothing yet; `on_first` is called with the optimizer when it is known."""
        self._on_step, self._on_first = on_step, on_first
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._handle: RemovableHandle | None = None

    def start(self) -> None:
        """Follow all optimizers from now on."""
        self._handle = register_optimizer_step_post_hook(self._after_step)

    def stop(self) -> None:
        """Follow nothing from now on."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        first = None if self._optimizer is None else self._optimizer()
        if first is None:
            self._optimizer = weakref.ref(optimizer)
            if self._on_first is not None:
                self._on_first(optimizer)
        elif first is not optimizer:
            return
        self._on_step()
