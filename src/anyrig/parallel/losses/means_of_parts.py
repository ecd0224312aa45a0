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
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from ...errors import SpreadError
from .target_means import read_mean, scale_mean

# Called with what a part's mean divides by; returns the same of all parts, and the part's share of
# the samples. All parts call it in the same order.
AddUp = Callable[[Tensor], tuple[Tensor, float]]

_NAMES = [
    name
    for name in ("cross_entropy", "nll_loss", "linear_cross_entropy")
    if hasattr(functional, name)
]


# Called with a mean and what it divides by; returns what the code gets instead.
_Replace = Callable[[Tensor, Tensor], Tensor]

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
def computing_part(add_up: AddUp, checks: bool = False) -> Iterator[None]:
    """Let the means over targets in this block, in this thread, be those of one part.

    In this block, a mean in a reentrant checkpoint raises SpreadError; if it `checks`, so does a
    function that was not called by its name in `torch.nn.functional`. The check takes some time.
    """

    def replace(mean: Tensor, own: Tensor) -> Tensor:
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

    with _replacing(replace), _CheckNames() if checks else nullcontext():
        yield


class CheckedCalls:
    """The calls of one model in which the names of functions were checked."""

    def __init__(self) -> None:
        self._seen: set[frozenset[str]] = set()

    def needs_check(self, module: nn.Module, kwargs: Mapping[str, Any]) -> bool:
        """Return whether no call with the same keyword arguments was checked yet.

        Calls of modules that are compiled are not checked, since they would be compiled twice.
        """
        names = frozenset(name for name, value in kwargs.items() if value is not None)
        if names in self._seen:
            return False
        self._seen.add(names)
        return not any(
            layer._compiled_call_impl is not None or "_orig_mod" in layer._modules
            for layer in module.modules()
        )


class _CheckNames(TorchFunctionMode):
    """Sees the calls of functions under any name, of which the replaced ones are refused."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # PyTorch's functions pass on what they find under their own name.
        original = inspect.unwrap(func)
        is_unseen = original in _functions.originals and _current.get() is not None
        if is_unseen and read_mean(original, args, kwargs) is not None:
            raise SpreadError(
                f"a mean over targets is computed by {original.__name__} under a name of its own, "
                "so its targets are not counted with those of the other parts of the batch. Call "
                f"it as torch.nn.functional.{original.__name__}, not by a name that was imported "
                "or kept before"
            )
        return func(*args, **kwargs)


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

    def note(mean: Tensor, own: Tensor) -> Tensor:
        found.append((mean, own))
        return mean

    if _current.get() is None:
        with _replacing(note), _CheckNames():
            yield found
    else:
        yield found


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
        return replace(value, own)

    return compute
