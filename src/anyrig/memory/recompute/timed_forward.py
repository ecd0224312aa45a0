"""Measure the time of recomputations."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from .buffers import KeptBuffers
from .forward import RecomputedForward


class Timer:
    """Measures the time of several stretches of work on the current stream."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def record(self) -> None:
        """Begin or end a stretch."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)

    def seconds(self) -> float:
        """Return the time of all stretches; the device must have finished them."""
        pairs = zip(self._events[::2], self._events[1::2], strict=True)
        milliseconds: float = sum(begin.elapsed_time(end) for begin, end in pairs)
        return milliseconds / 1000


class TimedForward(RecomputedForward):
    """Measures how long the recomputations take."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.timer = Timer()

    def _has_context(self, module: nn.Module) -> bool:
        return True

    def _around_recomputation(self, kept: KeptBuffers) -> AbstractContextManager[object]:
        return _Timed(self.timer, super()._around_recomputation(kept))


class _Timed(AbstractContextManager[None]):
    def __init__(self, timer: Timer, inner: AbstractContextManager[object]) -> None:
        self._timer = timer
        self._inner = inner

    def __enter__(self) -> None:
        self._timer.record()
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
        self._timer.record()
