"""Calls of `torch.utils.checkpoint.checkpoint` while a module is recorded.

The recorder notes a call of `checkpoint` where code finds the function by its name. Through another
object, such as a `functools.partial`, the function itself would run, and its computation would be
recorded without checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType, SimpleNamespace
from typing import Any

from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from .refusal import CannotTraceError, find_caller

# `checkpoint` calls one of these, as `use_reentrant` says. The first is private; if PyTorch renames
# it, test_a_checkpoint_through_another_object_is_refused fails.
_GENERATOR, _FUNCTION = "_checkpoint_without_reentrant_generator", "CheckpointFunction"


@contextmanager
def refusing_hidden_checkpoints() -> Iterator[None]:
    """Return a context in which `checkpoint` raises CannotTraceError if it runs with stand-ins."""
    generator, function = getattr(checkpoint, _GENERATOR), getattr(checkpoint, _FUNCTION)
    setattr(checkpoint, _GENERATOR, _refusing(generator))
    setattr(checkpoint, _FUNCTION, SimpleNamespace(apply=_refusing(function.apply)))
    try:
        yield
    finally:
        setattr(checkpoint, _GENERATOR, generator)
        setattr(checkpoint, _FUNCTION, function)


def _refusing(run: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, fx.Proxy) for each in pytree.tree_leaves((args, kwargs))):
            raise CannotTraceError(
                "torch.utils.checkpoint.checkpoint is called through another object, such as "
                "functools.partial; call checkpoint() itself",
                find_caller(),
            )
        return run(*args, **kwargs)

    return refuse


def module_called_by(function: Any) -> nn.Module | None:
    """Return the module whose ``__call__`` a bound method is; None for anything else.

    `checkpoint(layer.__call__, x)` is `checkpoint(layer, x)`.
    """
    owner = function.__self__ if isinstance(function, MethodType) else None
    if isinstance(owner, nn.Module) and function.__func__ is type(owner).__call__:
        return owner
    return None
