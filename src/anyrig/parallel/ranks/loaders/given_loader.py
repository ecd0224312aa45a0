"""What a loader that is to be distributed says about its batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
)

from ....errors import BatchError


def global_batches_of(loader: Any) -> Iterable[Any] | None:
    """Return an iterable over the indices of each global batch; None if the loader has no indices.

    Raise BatchError if the loader draws single samples in an order that differs between ranks.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    if type(loader).__iter__ is not DataLoader.__iter__:
        return None  # a subclass that iterates differently
    if loader.batch_sampler is not None:
        return loader.batch_sampler
    # With batch_size=None, a sampler may draw whole batches for a dataset that takes such indices.
    if isinstance(loader.sampler, BatchSampler):
        return loader.sampler
    if isinstance(loader.sampler, SequentialSampler):
        return None
    raise BatchError(
        "this loader has batch_size=None and shuffles, so it draws samples one by one, and in "
        "a different order on every rank. Give it the global batch as its batch_size, or a "
        "BatchSampler as its sampler, if the dataset takes a list of indices"
    )


def refuse_divided(loader: Any) -> None:
    """Raise BatchError if a sampler divides the loader's samples among the ranks."""
    parts = (loader, getattr(loader, "batch_sampler", None))
    if any(isinstance(getattr(part, "sampler", None), DistributedSampler) for part in parts):
        raise BatchError(
            "this loader is divided already, by its DistributedSampler. Leave the sampler out and "
            "give the loader the global batch as its batch_size; or, to keep it, pass divided=True"
        )


def allows_singles(loader: Any, ranks: int) -> bool:
    """Return whether global batches have at most one sample for each rank."""
    size = batch_size_of(loader)
    return size is not None and size <= ranks


def batch_size_of(loader: Any) -> int | None:
    """Return the number of samples in a batch; None if it is unknown."""
    parts = (loader, getattr(loader, "batch_sampler", None))
    sizes = (getattr(part, "batch_size", None) for part in parts)
    return next((size for size in sizes if isinstance(size, int)), None)


def length_of(loader: Any) -> int | None:
    """Return the number of batches; None if the loader has no length."""
    try:
        return len(loader)
    except TypeError:
        return None
