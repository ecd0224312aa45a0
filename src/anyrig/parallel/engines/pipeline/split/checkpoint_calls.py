"""Calls of `torch.utils.checkpoint.checkpoint` while a module is recorded.

The recorder notes a call of `checkpoint` where code finds the function by its name. Through another
object, such as a `functools.partial`, the function itself would run, and its computation would be
recorded without checkpointing.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType, MethodType
from typing import Any

from torch import nn
from torch.utils import checkpoint

from ....torch_versions import end_checkpoint
from .refusal import CannotTraceError, find_caller


def refuse_hidden_checkpoint(outermost: CodeType) -> None:
    """Raise CannotTraceError if a function of PyTorch's checkpoint file is running.

    Args:
        outermost: the code of the recorder, beyond which the search ends.
    """
    frame: FrameType | None = sys._getframe(1)
    called = None
    while frame is not None and frame.f_code is not outermost:
        if frame.f_code.co_filename == checkpoint.__file__:
            called = frame
            end_checkpoint(frame)
        frame = frame.f_back
    if called is not None:
        raise CannotTraceError(
            "torch.utils.checkpoint.checkpoint is called through another object, such as "
            "functools.partial; call checkpoint() itself",
            find_caller(called),
        )


def module_called_by(function: Any) -> nn.Module | None:
    """Return the module whose ``__call__`` a bound method is; None for anything else.

    `checkpoint(layer.__call__, x)` is `checkpoint(layer, x)`.
    """
    owner = function.__self__ if isinstance(function, MethodType) else None
    if isinstance(owner, nn.Module) and function.__func__ is type(owner).__call__:
        return owner
    return None
