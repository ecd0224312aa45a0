"""What data loaders give a program, and how long it waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..observe.events import Events
from ..observe.hooks import Observer


class LoaderWatch(Observer):
    """Counts the samples of batches and the time that the program waits for them.

    The time is measured with this machine's wall clock: a virtual GPU says nothing about a data
    loader.
    """

    def __init__(self) -> None:
        self._samples: int | None = None
        self._wall_seconds = 0.0
        super().__init__(Events(next_batch=self._next_batch))

    def take(self) -> tuple[int | None, float]:
        """Return the samples loaded and the seconds waited since the last call."""
        taken = self._samples, self._wall_seconds
        self._samples, self._wall_seconds = None, 0.0
        return taken

    def _next_batch(self, load: Callable[[Any], Any], iterator: Any) -> Any:
        begin = time.perf_counter()
        try:
            batch = load(iterator)
        finally:
            self._wall_seconds += time.perf_counter() - begin
        samples = count_samples(batch)
        if samples is not None:
            self._samples = (self._samples or 0) + samples
        return batch


def count_samples(batch: Any) -> int | None:
    """Return the samples of a batch: the length of its first tensor; None if it has none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() > 0 else None
    parts: Iterable[Any] = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, tuple | list):
        parts = batch
    return next((found for part in parts if (found := count_samples(part)) is not None), None)
