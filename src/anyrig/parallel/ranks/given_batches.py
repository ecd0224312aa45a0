"""The sample counts of the batches that loaders gave to this rank.

A loader from `distribute` knows how many samples it gave out, whatever the class of the batch. A
model looks the number up by the identity of any object in the batch, such as one of its tensors.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from ...errors import MoveError
from ...transfer.tree import ATOM_TYPES, list_leaves


class GivenBatches:
    """The objects in batches that are still alive, with the numbers of samples."""

    def __init__(self) -> None:
        # By id, because tensors have no usable equality.
        self._samples: dict[int, tuple[weakref.ref[Any], int]] = {}

    def note(self, batch: Any, samples: int) -> None:
        """Note that a batch with this number of samples is given out."""
        for held in _objects_in(batch):
            try:
                reference = weakref.ref(held, partial(self._forget, id(held)))
            except TypeError:  # as of a class with slots
                continue
            self._samples[id(held)] = reference, samples

    def _forget(self, key: int, reference: object) -> None:
        self._samples.pop(key, None)

    def count(self, value: Any) -> int | None:
        """Return the samples of the batch that `value` has an object of; None if it has none."""
        if not self._samples:
            return None
        found = set()
        for held in _objects_in(value):
            reference, samples = self._samples.get(id(held), (None, 0))
            if reference is not None and reference() is held:
                found.add(samples)
        return found.pop() if len(found) == 1 else None


def _objects_in(value: Any) -> list[Any]:
    try:
        return [leaf for leaf, _ in list_leaves(value) if type(leaf) not in ATOM_TYPES]
    except MoveError:  # a container that holds itself
        return []
