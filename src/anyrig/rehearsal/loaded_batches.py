"""What data loaders give a program, and how long it waits for them."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

# Private: the class of the iterators of every DataLoader. There is no hook for them.
# tests/rehearsal/test_steps.py fails if the name changes.
from torch.utils.data.dataloader import _BaseDataLoaderIter


class LoaderWatch:
    """Counts the samples of batches and the time that the program waits for them.

    The time is that of this machine's wall clock: a virtual GPU says nothing about a data loader.
    """

    def __init__(self) -> None:
        self._samples: int | None = None
        self._wall_seconds = 0.0
        self._original: Any = None

    def start(self) -> None:
        """Watch the iterators of all data loaders from now on."""
        original = self._original = _BaseDataLoaderIter.__next__

        @functools.wraps(original)
        def next_batch(iterator: Any) -> Any:
            begin = time.perf_counter()
            try:
                batch = original(iterator)
            finally:
                self._wall_seconds += time.perf_counter() - begin
            samples = count_samples(batch)
            if samples is not None:
                self._samples = (self._samples or 0) + samples
            return batch

        _BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign, assignment]

    def stop(self) -> None:
        """Watch nothing from now on."""
        if self._original is not None:
            _BaseDataLoaderIter.__next__ = self._original  # type: ignore[method-assign]
            self._original = None

    def take(self) -> tuple[int | None, float]:
        """Return the samples loaded and the seconds waited since the last call."""
        taken = self._samples, self._wall_seconds
        self._samples, self._wall_seconds = None, 0.0
        return taken


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
