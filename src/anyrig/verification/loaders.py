"""The batches of data loaders: recorded in one run, and delivered in the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..observe.events import Events
from ..observe.hooks import Observer
from .merging import Batches
from .records import LoadedBatch


class RecordedLoaders(Observer):
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
        super().__init__(Events(next_batch=self._next))

    def stop(self) -> None:
        """Watch nothing from now on."""
        super().stop()
        self._kept.clear()
        self._places.clear()

    def _next(self, load: Callable[[Any], Any], iterator: Any) -> Any:
        if id(iterator) not in self._places:
            self._places[id(iterator)] = [len(self._places), 0]
            self._kept.append(iterator)
        place = self._places[id(iterator)]
        iteration, number = place
        place[1] += 1
        if self._replayed is not None:
            with contextlib.suppress(StopIteration):
                load(iterator)  # its sampler may keep count
            return self._deliver(iteration, number)
        try:
            batch = widen(load(iterator)) if self._widens else load(iterator)
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
