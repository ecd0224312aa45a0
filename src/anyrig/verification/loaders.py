"""The batches of data loaders: recorded in one run, and delivered in the other."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import VerificationError
from ..observe.events import Events
from ..observe.hooks import Observer
from .merging import Batches
from .recollation import Recollation
from .records import LoadedBatch


class RecordedLoaders(Observer):
    """Records the batches of all data loaders, or delivers recorded ones instead.

    Attributes:
        batches: what was delivered.
        failure: why a recorded batch could not be delivered; None if all could.
    """

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
        self.failure: str | None = None
        self._step = step
        self._widens = widens
        self._replayed = replayed
        self._on_end = on_end
        self._places: dict[int, list[int]] = {}
        self._loaders: dict[int, Any] = {}  # by iterator
        self._indices: dict[int, deque[Any]] = {}  # of batches not yet delivered, by iterator
        self._kept: list[Any] = []  # or another iterator would get the same id
        super().__init__(Events(next_batch=self._next))

    def start(self) -> None:
        """Watch from now on."""
        super().start()
        # Private: no public name has the indices of the samples of a batch.
        # tests/verification/test_batches_of_ranks.py fails if a name changes.
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        self.replacements.around(_BaseDataLoaderIter, "__init__", self._note_loader)
        self.replacements.around(_BaseDataLoaderIter, "_reset", self._note_loader)
        self.replacements.around(_BaseDataLoaderIter, "_next_index", self._note_indices)

    def stop(self) -> None:
        """Watch nothing from now on."""
        super().stop()
        for one in (self._kept, self._places, self._loaders, self._indices):
            one.clear()

    def _note_loader(
        self, begin: Callable[..., None], iterator: Any, loader: Any, *rest: Any, **options: Any
    ) -> None:
        # Persistent workers begin again with the same iterator.
        self._loaders[id(iterator)], self._indices[id(iterator)] = loader, deque()
        begin(iterator, loader, *rest, **options)

    def _note_indices(self, next_index: Callable[[Any], Any], iterator: Any) -> Any:
        found = next_index(iterator)
        if id(iterator) in self._indices:
            self._indices[id(iterator)].append(found)
        return found

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
            return self._deliver(iterator, iteration, number)
        try:
            batch = widen(load(iterator)) if self._widens else load(iterator)
        except StopIteration:
            self.batches.append(LoadedBatch(iteration, number, self._step(), None))
            self._indices.get(id(iterator), deque()).clear()
            raise
        host, indices = _to_host(batch), self._take_indices(iterator)
        self.batches.append(LoadedBatch(iteration, number, self._step(), host, indices))
        return batch

    def _take_indices(self, iterator: Any) -> tuple[Any, ...] | None:
        """Return the indices of the batch that was just loaded; None if it has no list of them."""
        waiting = self._indices.get(id(iterator))
        found = waiting.popleft() if waiting else None
        # The loader of a data set without indices has None for each sample.
        if not isinstance(found, list | tuple) or any(one is None for one in found):
            return None
        return tuple(found)

    def _deliver(self, iterator: Any, iteration: int, number: int) -> Any:
        assert self._replayed is not None
        found = self._replayed.get((iteration, number))
        if found is None:
            self._on_end()
            raise StopIteration
        if found.batch is None:
            raise StopIteration
        batch, is_recollated = found.batch, isinstance(found.batch, Recollation)
        if isinstance(batch, Recollation):
            batch = self._recollate(batch, iterator)
        self.batches.append(
            LoadedBatch(iteration, number, self._step(), batch, is_recollated=is_recollated)
        )
        return batch

    def _recollate(self, parts: Recollation, iterator: Any) -> Any:
        loader = self._loaders[id(iterator)]
        try:
            batch = _to_host(parts.collate(loader.dataset, loader.collate_fn))
            batch = widen(batch) if self._widens else batch
            parts.check(batch, loader.collate_fn)
        except VerificationError as error:
            self.failure = str(error)
            raise
        return batch


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
