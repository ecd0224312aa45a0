"""The batches of data loaders: recorded in one run, and delivered in the other."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

# Private: the class of the iterators of every DataLoader. There is no hook for them.
# tests/verification/test_findings.py fails if the name changes.
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .merging import Batches
from .records import LoadedBatch


class RecordedLoaders:
    """Records the batches of all data loaders, or delivers recorded ones instead."""

    def __init__(
        self,
        step: Callable[[], int],
        widens: bool,
        replayed: Batches | None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Watch nothing yet.

        Args:
            step: returns the number of the current step.
            widens: whether to make float32 values float64.
            replayed: the batches to deliver; None to record those of the loaders.
            on_end: what to call if the record has no further batch and the loader has not ended.
        """
        self.batches: list[LoadedBatch] = []
        self._step = step
        self._widens = widens
        self._replayed = replayed
        self._on_end = on_end
        self._places: dict[int, list[int]] = {}
        self._kept: list[Any] = []  # or another iterator would get the same id
        self._original: Any = None
        self.last: Any = None

    def start(self) -> None:
        """Watch the iterators of all data loaders from now on."""
        original = self._original = _BaseDataLoaderIter.__next__

        @functools.wraps(original)
        def next_batch(iterator: Any) -> Any:
            return self._next(iterator, original)

        _BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign, assignment]

    def stop(self) -> None:
        """Watch nothing from now on."""
        if self._original is not None:
            _BaseDataLoaderIter.__next__ = self._original  # type: ignore[method-assign]
            self._original = None
        self._kept.clear()
        self._places.clear()

    def _next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        if id(iterator) not in self._places:
            self._places[id(iterator)] = [len(self._places), 0]
            self._kept.append(iterator)
        place = self._places[id(iterator)]
        iteration, number = place
        place[1] += 1
        if self._replayed is not None:
            with contextlib.suppress(StopIteration):
                original(iterator)  # its sampler may keep count
            return self._deliver(iteration, number)
        try:
            batch = widen(original(iterator)) if self._widens else original(iterator)
        except StopIteration:
            self.batches.append(LoadedBatch(iteration, number, self._step(), None))
            raise
        self.batches.append(LoadedBatch(iteration, number, self._step(), _to_host(batch)))
        return batch

    def _deliver(self, iteration: int, number: int) -> Any:
        assert self._replayed is not None
        found = self._replayed.get((iteration, number))
        if found is None:
            self._on_end()
            raise StopIteration
        if found.batch is None:
            raise StopIteration
        self.batches.append(LoadedBatch(iteration, number, self._step(), found.batch))
        return found.batch


def widen(values: Any) -> Any:
    """Return nested values whose float32 tensors are float64."""
    return _map(lambda one: one.double() if one.dtype == torch.float32 else one, values)


def _to_host(values: Any) -> Any:
    return _map(lambda one: one.detach().cpu().clone(), values)


def _map(change: Callable[[Tensor], Tensor], values: Any) -> Any:
    if isinstance(values, Tensor):
        return change(values)
    if isinstance(values, Mapping):
        changed = {key: _map(change, one) for key, one in values.items()}
        return changed if type(values) is dict else _with_values(values, changed)
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(_map(change, one) for one in values))
    if isinstance(values, tuple | list):
        return type(values)(_map(change, one) for one in values)
    return values


def _with_values(mapping: Any, values: Mapping[str, Any]) -> Any:
    """Return a mapping of the same class, such as transformers' BatchEncoding, if it allows it."""
    try:
        return type(mapping)(values)
    except TypeError:
        return values
