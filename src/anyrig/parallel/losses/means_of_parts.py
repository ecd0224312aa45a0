"""The means over targets that code computes for one part of a batch.

::

    the part on one device    mean of its 3 targets that count
    of the whole batch        12 such targets, and the part has half of the samples
    what the code gets        mean * 3 / 12 / (1/2)

What a module or a loss returns for a part is weighted by samples. With these means, the result is
the mean over the targets of the whole batch, however unevenly ignored targets are spread, also
where the code scales the mean or adds other terms.

While a part is computed, PyTorch's functions of such means are replaced. They ask for the total of
the counts where they are called, so the devices meet there. Where parts are computed one after
another, as micro-batches are, the functions only note their means.

A checkpoint computes its block again in the backward pass, with PyTorch's own functions. If it
restores the tensors that the first computation saved, the scale of a mean must save none. If it
differentiates the second computation, there is no scale, so the mean is refused.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import CheckpointFunction

from ...errors import SpreadError
from .checked_means import CheckFunctions, FirstCall
from .target_means import TargetMean, read_mean, scale_mean

# Called with what a part's mean divides by; returns the same of all parts, and the part's share of
# the samples. All parts call it in the same order.
AddUp = Callable[[Tensor], tuple[Tensor, float]]

_NAMES = [
    name
    for name in ("cross_entropy", "nll_loss", "linear_cross_entropy")
    if hasattr(functional, name)
]


# Called with a call, its mean and what that divides by; returns what the code gets instead.
_Replace = Callable[[TargetMean, Tensor, Tensor], Tensor]

_current: ContextVar[_Replace | None] = ContextVar("anyrig_means_of_part", default=None)


class _Functions:
    """PyTorch's functions, replaced while any thread computes a part."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._originals: dict[str, Callable[..., Tensor]] = {}

    @property
    def originals(self) -> Collection[Callable[..., Tensor]]:
        """The functions that are replaced."""
        return self._originals.values()

    @contextmanager
    def replaced(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._originals = {name: getattr(functional, name) for name in _NAMES}
                for name, original in self._originals.items():
                    setattr(functional, name, _mean_of_part(original))
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    for name, original in self._originals.items():
                        setattr(functional, name, original)


_functions = _Functions()


@contextmanager
def computing_part(add_up: AddUp, first: FirstCall | None = None) -> Iterator[None]:
    """Let the means over targets in this block, in this thread, be those of one part.

    In this block, a mean in a reentrant checkpoint raises SpreadError. `first` is given for a call
    that is checked for other means that parts do not show, which takes some time.
    """

    def replace(call: TargetMean, mean: Tensor, own: Tensor) -> Tensor:
        if first is not None:
            first.refuse_contrast(call)
        if not torch.is_grad_enabled() and _is_in_reentrant_checkpoint():
            raise SpreadError(
                "a mean over targets is computed in checkpoint(…, use_reentrant=True), which "
                "computes the mean again in the backward pass, where the targets of the other "
                "devices are not counted. Use checkpoint(…, use_reentrant=False), or compute the "
                "loss outside the checkpoint"
            )
        with torch.no_grad():
            total, share = add_up(own)
        with _unseen_by_checkpoints():
            return scale_mean(mean, own, total, share)

    with _replacing(replace), nullcontext() if first is None else _checking(not first.has_loss):
        yield


def _is_in_reentrant_checkpoint() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is CheckpointFunction.forward.__code__:
            return True
    return False


def _unseen_by_checkpoints() -> AbstractContextManager[object]:
    """Return a context whose operations save their tensors as outside any checkpoint."""
    # Private; transforms such as torch.func.grad refuse hooks.
    if torch._C._are_functorch_transforms_active():
        return nullcontext()
    return saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


@contextmanager
def noting_means() -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Note the means over targets in this block, in this thread, and what they divide by.

    Note nothing within `computing_part`, which sees to them.
    """
    found: list[tuple[Tensor, Tensor]] = []

    def note(call: TargetMean, mean: Tensor, own: Tensor) -> Tensor:
        found.append((mean, own))
        return mean

    if _current.get() is None:
        with _replacing(note), _checking(False):
            yield found
    else:
        yield found


def _checking(refuses_sums: bool) -> CheckFunctions:
    return CheckFunctions(_functions.originals, lambda: _current.get() is None, refuses_sums)


@contextmanager
def _replacing(replace: _Replace) -> Iterator[None]:
    token = _current.set(replace)
    try:
        with _functions.replaced():
            yield
    finally:
        _current.reset(token)


@functools.cache
def _mean_of_part(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @_disable_dynamo
    @functools.wraps(function)
    def compute(*args: Any, **kwargs: Any) -> Tensor:
        replace = _current.get()
        mean = None if replace is None else read_mean(function, args, kwargs)
        # PyTorch calls this again within the function for a mode, or for a subclass of Tensor.
        token = _current.set(None)
        try:
            value = function(*args, **kwargs)
        finally:
            _current.reset(token)
        if replace is None or mean is None:
            return value
        with torch.no_grad():
            own = mean.count(value.device)
        return replace(mean, value, own)

    return compute
