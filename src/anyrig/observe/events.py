"""`Events`, what an `Observer` can be asked to report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class Events:
    """The functions that handle the events of a program; nothing is hooked for None.

    Each function is called in the thread that causes the event, and what it raises reaches the
    program. What torch.compile traces causes no event of backward passes and of `zero_grad`.

    Attributes:
        module_called: called before a module's forward, with the module and its positional
            arguments; returns other arguments, or None to keep them.
        module_finished: called after a module's forward, even if it raised, with the module and its
            positional and keyword arguments; without the latter if it raised.
        backward_begun: called before `torch.autograd.backward`, with the tensors and the gradients
            that it was given.
        backward_ended: called after it.
        backward_failed: called if it raised.
        step_begun: called before a step of an optimizer.
        step_ended: called after it, but not if it raised.
        zeroed: called before `zero_grad()` of an optimizer or a module.
        next_batch: called instead of the `__next__` of an iterator over a DataLoader, with that
            function and the iterator; returns the batch.
    """

    module_called: Callable[[nn.Module, tuple[Any, ...]], Any] | None = None
    module_finished: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], object] | None = None
    backward_begun: Callable[[Any, Any], object] | None = None
    backward_ended: Callable[[], object] | None = None
    backward_failed: Callable[[], object] | None = None
    step_begun: Callable[[Optimizer], None] | None = None
    step_ended: Callable[[Optimizer], None] | None = None
    zeroed: Callable[[Optimizer | nn.Module], object] | None = None
    next_batch: Callable[[Callable[[Any], Any], Any], Any] | None = None
