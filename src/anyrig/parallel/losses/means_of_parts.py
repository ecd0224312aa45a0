"""The means over targets that code computes for one part of a batch.

::

    the part on one device    mean of its 3 targets that count
    of the whole batch        12 such targets, and the part has half of the samples
    what the code gets        mean * 3 / 12 / (1/2)

What a module or a loss returns for a part is weighted by samples. With these means, the result is
the mean over the targets of the whole batch, however unevenly ignored targets are spread, even
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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils.checkpoint import CheckpointFunction

from ...errors import SpreadError
from .checked_means import FirstCall
from .target_means import read_mean, scale_mean

# Called with what a part's mean divides by; returns the same of all parts, and the part's share of
# the samples. All parts call it in the same order.
AddUp = Callable[[Tensor], tuple[Tensor, float]]

_NAMES = [
    name
    for name in ("cross_entropy", "nll_loss", "linear_cross_entropy")
    if hasattr(functional, name)
]


# Called with a function, its arguments and its value; returns what the code gets instead.
_Take = Callable[[Callable[..., Tensor], Any, Any, Tensor], Tensor]


@dataclass(frozen=True)
class _Part:
    """What replaced functions do, and the nodes of the graph that they make, if these are noted."""

    take: _Take
    seen: list[Any] | None


_current: ContextVar[_Part | None] = ContextVar("anyrig_part_of_batch", default=None)


class _Functions:
    """PyTorch's functions, replaced while any thread computes a part."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._originals: dict[str, Callable[..., Tensor]] = {}

    @contextmanager
    def replaced(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            may_be_compiled = "torch._dynamo" in sys.modules
            if self._users == 1:
                self._originals = {name: getattr(functional, name) for name in _NAMES}
            if self._users == 1 or may_be_compiled:
                for name, original in self._originals.items():
                    setattr(functional, name, _mean_of_part(original, may_be_compiled))
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

    In this block, a mean in a reentrant checkpoint raises SpreadError. With `first`, so does a mean
    or a sum that cannot be computed from parts; this check takes some time.
    """

    def take(function: Callable[..., Tensor], args: Any, kwargs: Any, value: Tensor) -> Tensor:
        if first is not None:
            first.check(function, args, kwargs, value)
        mean = read_mean(function, args, kwargs)
        if mean is None:
            return value
        if not torch.is_grad_enabled() and _is_in_reentrant_checkpoint():
            raise SpreadError(
                "a mean over targets is computed in checkpoint(…, use_reentrant=True), which "
                "computes the mean again in the backward pass, where the targets of the other "
                "devices are not counted. Use checkpoint(…, use_reentrant=False), or compute the "
                "loss outside the checkpoint"
            )
        with torch.no_grad():
            own = mean.count(value.device)
            total, share = add_up(own)
        with _unseen_by_checkpoints():
            return scale_mean(value, own, total, share)

    with _replacing(_Part(take, None if first is None else first.seen)):
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


@dataclass
class Noted:
    """What the functions of a loss have computed.

    Attributes:
        means: the means over targets, and what they divide by.
        seen: the nodes of the graph that the functions have made; None if they were not noted.
    """

    means: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    seen: list[Any] | None = None


@contextmanager
def noting_means() -> Iterator[Noted]:
    """Note the means over targets in this block, in this thread, and what they divide by.

    Note no means within `computing_part`, which sees to them.
    """
    outer = _current.get()
    if outer is not None:
        yield Noted(seen=outer.seen)
        return
    seen: list[Any] = []
    noted = Noted(seen=seen)

    def take(function: Callable[..., Tensor], args: Any, kwargs: Any, value: Tensor) -> Tensor:
        seen.append(value.grad_fn)
        mean = read_mean(function, args, kwargs)
        if mean is not None:
            with torch.no_grad():
                noted.means.append((value, mean.count(value.device)))
        return value

    with _replacing(_Part(take, seen)):
        yield noted


@contextmanager
def counting_targets(counts: list[Tensor]) -> Iterator[None]:
    """Add what each mean over targets in this block, in this thread, divides by to `counts`."""

    def take(function: Callable[..., Tensor], args: Any, kwargs: Any, value: Tensor) -> Tensor:
        mean = read_mean(function, args, kwargs)
        if mean is not None:
            counts.append(mean.count(value.device))
        return value

    with _replacing(_Part(take, None)):
        yield


@contextmanager
def _replacing(part: _Part) -> Iterator[None]:
    token = _current.set(part)
    try:
        with _functions.replaced():
            yield
    finally:
        _current.reset(token)


@functools.cache
def _mean_of_part(function: Callable[..., Tensor], may_be_compiled: bool) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def compute(*args: Any, **kwargs: Any) -> Tensor:
        part = _current.get()
        # PyTorch calls this again within the function for a mode, or for a subclass of Tensor.
        token = _current.set(None)
        try:
            value = function(*args, **kwargs)
        finally:
            _current.reset(token)
        return value if part is None else part.take(function, args, kwargs, value)

    # The decorator imports the compiler, which takes a process two seconds and 70 MiB.
    return _disable_dynamo(compute) if may_be_compiled else compute
