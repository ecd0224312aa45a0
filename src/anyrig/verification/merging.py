"""One device's batches from those of the ranks.

::

    rank 0: [a b] [c d]       one device: [a c e g] [b d f h]
    rank 1: [e f] [g h]

The batches that the ranks loaded at the same time are put together, in the order of ranks; equal
batches, such as those of the ranks of tensor parallelism, are used once. Batches that cannot be
joined, such as those padded to different widths, are left to `Recollation`. Then the samples of a
step with several equal micro-batches are redistributed over them: the gradient of a correct program
does not depend on this, whereas a mean of means over unequal numbers of tokens does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import VerificationError
from .recollation import REMEDY, Recollation, has_samples_first
from .records import LoadedBatch, RankRecord
from .samples import digest_of, hash_samples

Batches = Mapping[tuple[int, int], LoadedBatch]


def merge_batches(records: Sequence[RankRecord]) -> Batches:
    """Return the batches of one device, by (iteration over a loader, number in that iteration).

    Raises:
        VerificationError: the batches of the ranks cannot be put together.
    """
    by_place: dict[tuple[int, int], list[LoadedBatch]] = {}
    for record in records:
        for one in record.batches:
            by_place.setdefault((one.iteration, one.number), []).append(one)
    merged = {place: _merge_ranks(batches) for place, batches in by_place.items()}
    if any(record.has_batch_statistics for record in records):
        return merged  # which depend on the samples that are together in a batch
    steps = _steps_of_samples(records)
    by_step: dict[tuple[int, int], list[LoadedBatch]] = {}
    for one in merged.values():
        step = None if one.batch is None else _step_of(one.batch, steps)
        if step is not None:
            by_step.setdefault((one.iteration, step), []).append(one)
    for group in by_step.values():
        for one in deal_anew(sorted(group, key=lambda each: each.number)):
            merged[one.iteration, one.number] = one
    return merged


def _steps_of_samples(records: Sequence[RankRecord]) -> Mapping[str, set[int]]:
    """Return the steps in which each sample was computed, which may be later than its loading."""
    steps: dict[str, set[int]] = {}
    for record in records:
        for number, step in enumerate(record.steps):
            for sample in (one for call in step.forwards for one in call):
                steps.setdefault(sample, set()).add(number)
    return steps


def _step_of(batch: Any, steps: Mapping[str, set[int]]) -> int | None:
    """Return the step that computed a batch; None if that is not certain."""
    hashed = hash_samples(batch)
    found = [] if hashed is None else [steps.get(sample, set()) for sample in hashed[0]]
    every = set().union(*found)
    is_certain = len(every) == 1 and all(found)
    return next(iter(every)) if is_certain else None


def deal_anew(batches: Sequence[LoadedBatch]) -> list[LoadedBatch]:
    """Redistribute the samples of micro-batches of equal size, one to each in turn."""
    sizes = [_count(one.batch) for one in batches]
    if len(batches) < 2 or len(set(sizes)) > 1:
        return [*batches]
    try:
        whole = join_values([one.batch for one in batches])
    except VerificationError:  # micro-batches of unequal shapes stay as they are
        return [*batches]
    total, parts = sum(sizes), len(batches)
    return [
        replace(one, batch=_select(whole, torch.arange(first, total, parts)))
        for first, one in enumerate(batches)
    ]


def _merge_ranks(batches: Sequence[LoadedBatch]) -> LoadedBatch:
    first = batches[0]
    present = [*{digest_of(one.batch): one for one in batches if one.batch is not None}.values()]
    if not present:
        return first
    parts = tuple(one.batch for one in present)
    indices = [one.indices for one in present if one.indices is not None]
    anew = Recollation(parts, tuple(indices))
    can_be_anew = len(present) > 1 and len(indices) == len(present)
    if can_be_anew and not all(map(has_samples_first, parts, map(len, indices))):
        return replace(first, batch=anew, indices=None)
    try:
        batch = join_values(parts)
    except VerificationError:
        if not can_be_anew:
            raise
        batch = anew
    return replace(first, batch=batch, indices=None)


def join_values(values: Sequence[Any]) -> Any:
    """Join batches of the same structure along the dimension of their samples.

    Raises:
        VerificationError: their tensors differ in the size of another dimension, or they have parts
            that are neither tensors nor strings nor equal numbers. A tensor without dimensions
            counts as a number.
    """
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, Tensor):
        if first.dim() == 0 and all(isinstance(one, Tensor) and one.equal(first) for one in values):
            return first
        if first.dim() == 0 or any(one.shape[1:] != first.shape[1:] for one in values):
            shapes = ", ".join(str(tuple(one.shape)) for one in values)
            raise VerificationError(
                f"the ranks loaded batches of the shapes {shapes}, which cannot be put together "
                "for one device, and their loader has no indices by which its collate function "
                f"could make one batch of their samples; {REMEDY}"
            )
        return torch.cat([*values])
    if isinstance(first, tuple | list) and all(isinstance(one, str) for one in first):
        return type(first)(text for one in values for text in one)
    return _rebuild(first, values, join_values)


def _rebuild(first: Any, values: Sequence[Any], join: Callable[[Sequence[Any]], Any]) -> Any:
    """Join containers part by part; other objects must be equal."""
    if isinstance(first, Mapping):
        return {key: join([one[key] for one in values]) for key in first}
    if isinstance(first, tuple | list) and any(len(one) != len(first) for one in values):
        lengths = ", ".join(str(len(one)) for one in values)
        raise VerificationError(
            f"the ranks loaded batches with lists of the lengths {lengths}, which cannot be put "
            "together for one device; return tensors from the data set"
        )
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(join([*parts]) for parts in zip(*values, strict=True)))
    if isinstance(first, tuple | list):
        return type(first)(join([*parts]) for parts in zip(*values, strict=True))
    if all(one == first for one in values):
        return first
    raise VerificationError(
        f"the ranks loaded batches with parts of the type {type(first).__name__}, which cannot be "
        "put together for one device; return tensors from the data set"
    )


def _select(values: Any, chosen: Tensor) -> Any:
    """Return some samples of a batch."""
    if isinstance(values, Tensor):
        return values[chosen] if values.dim() else values
    if isinstance(values, Mapping):
        return {key: _select(one, chosen) for key, one in values.items()}
    if isinstance(values, tuple) and hasattr(values, "_fields"):
        return type(values)(*(_select(one, chosen) for one in values))
    if isinstance(values, tuple | list):
        if values and all(isinstance(one, str) for one in values):
            return type(values)(values[int(i)] for i in chosen)
        return type(values)(_select(one, chosen) for one in values)
    return values


def _count(values: Any) -> int:
    if isinstance(values, Tensor):
        return values.shape[0] if values.dim() else 0
    parts = values.values() if isinstance(values, Mapping) else values
    if isinstance(parts, str | bytes) or not hasattr(parts, "__iter__"):
        return 0
    return next((found for one in parts if (found := _count(one))), 0)
