"""The calls of modules among running functions."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import nn


def module_calls(frame: FrameType | None) -> Iterator[tuple[int, FrameType]]:
    """Yield the calls of modules that run a function: (how many callers away, frame).

    The innermost call comes first.
    """
    call = nn.Module.__call__.__code__
    distance = 0
    while frame is not None:
        if frame.f_code is call:
            yield distance, frame
        frame, distance = frame.f_back, distance + 1


def outermost_call(frame: FrameType | None) -> tuple[nn.Module, tuple[Any, ...]] | None:
    """Return the outermost module whose call runs a function, and the call's arguments."""
    calls = list(module_calls(frame))
    if not calls:
        return None
    known = calls[-1][1].f_locals
    module = known.get("self")
    if not isinstance(module, nn.Module):
        return None
    return module, (*known.get("args", ()), *known.get("kwargs", {}).values())
