"""One device's batch from the samples of the ranks, by the loader's own collate function.

::

    rank 0: samples 0 2 ── collate ─▶ a a a         one device: 0 2 1 3 ── collate ─▶ a a a 0 0
                                      b b 0                                           b b 0 0 0
    rank 1: samples 1 3 ── collate ─▶ c c c c c                                       c c c c c
                                      d d d d 0                                       d d d d 0

Batches that are padded to their longest sample cannot be concatenated if their widths differ, and
neither can batches whose first dimension is time. Only the collate function knows what it pads
with. What it returns counts if it has the values of the ranks' batches, and is padded at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import VerificationError
from .samples import tensors_in

REMEDY = (
    "make all samples of one length in the data set while you verify, such as "
    "torch.nn.functional.pad(sample, (0, 512 - len(sample))), so that the batches of all ranks "
    "have one shape"
)


@dataclass(frozen=True)
class Recollation:
    """The batches of several ranks, which the collate function has to make into one.

    Attributes:
        parts: the ranks' batches, in the order of ranks.
        indices: the indices of the samples of each.
    """

    parts: tuple[Any, ...]
    indices: tuple[tuple[Any, ...], ...]

    def collate(self, dataset: Any, collate: Callable[[Any], Any]) -> Any:
        """Return the batch of all samples.

        Raises:
            VerificationError: the collate function cannot make it, or it has other values than
                the ranks' batches.
        """
        indices = [each for part in self.indices for each in part]
        load = getattr(dataset, "__getitems__", None)  # PyTorch's name for several at once
        try:
            batch = collate(load(indices) if load else [dataset[each] for each in indices])
        except Exception as error:
            raise VerificationError(
                f"the ranks loaded batches of the shapes {self.shapes}, which one device cannot "
                f"have as one batch: {_name(collate)} raised {type(error).__name__}: {error}; "
                f"{REMEDY}"
            ) from error
        return batch

    def check(self, batch: Any, collate: Callable[[Any], Any]) -> None:
        """Raise a `VerificationError` unless a batch has the values of the ranks' batches."""
        if not _is_made_of(batch, self.parts):
            raise VerificationError(
                f"the ranks loaded batches of the shapes {self.shapes}; on one device, "
                f"{_name(collate)} got the samples of the same indices, and returned other values "
                "than padding around those of the ranks. Samples or a collate function that draw "
                "random numbers cause this, and so do ranks with data sets of their own: use one "
                f"data set with a DistributedSampler, or {REMEDY}"
            )

    @property
    def shapes(self) -> str:
        """The shapes of the first tensor that keeps the ranks' batches from being joined."""
        return shapes_of(self.parts)


def shapes_of(batches: Sequence[Any]) -> str:
    """Return the shapes of the first tensors whose shapes differ; of the first ones if none do."""
    found = [[*tensors_in(batch)] for batch in batches]
    columns = [*zip(*found, strict=False)]
    differing = (each for each in columns if len({one.shape for one in each}) > 1)
    chosen = next(differing, columns[0] if columns else ())
    return ", ".join(str(tuple(one.shape)) for one in chosen)


def has_samples_first(batch: Any, count: int) -> bool:
    """Return whether the first dimension of every tensor of a batch has `count` samples."""
    return all(tensor.shape[0] == count for tensor in tensors_in(batch) if tensor.dim())


def _is_made_of(whole: Any, parts: Sequence[Any]) -> bool:
    """Return whether every tensor of `whole` has the values of the parts, and else padding.

    What is not in a tensor with dimensions, such as the greatest length of a batch, may differ.
    """
    if isinstance(whole, Tensor):
        same_kind = all(isinstance(one, Tensor) and one.dim() == whole.dim() for one in parts)
        if not same_kind or any(one.dtype != whole.dtype for one in parts):
            return False
        if whole.dim() == 0 or all(one.equal(whole) for one in parts):
            return True
        return any(_is_joined(whole, parts, dimension) for dimension in range(whole.dim()))
    if isinstance(whole, Mapping):
        same_keys = all(isinstance(one, Mapping) and one.keys() == whole.keys() for one in parts)
        return same_keys and all(
            _is_made_of(whole[key], [one[key] for one in parts]) for key in whole
        )
    if isinstance(whole, tuple | list):
        if not all(isinstance(one, tuple | list) for one in parts):
            return False
        if all(len(one) == len(whole) for one in parts) and all(
            map(_is_made_of, whole, zip(*parts, strict=True))
        ):
            return True
        samples = [[sample] for one in parts for sample in one]
        return len(samples) == len(whole) and all(map(_is_made_of, whole, samples))
    return True


def _is_joined(whole: Tensor, parts: Sequence[Tensor], dimension: int) -> bool:
    sizes = [one.shape[dimension] for one in parts]
    if sum(sizes) != whole.shape[dimension]:
        return False
    cut = torch.split(whole, sizes, dimension)
    return all(
        any(one.equal(each) for each in _without_padding(its, one.shape))
        for its, one in zip(cut, parts, strict=True)
    )


def _without_padding(padded: Tensor, shape: Sequence[int]) -> Iterator[Tensor]:
    """Yield a tensor without padding at the end, or at the beginning, of each dimension."""
    spare = [have - want for have, want in zip(padded.shape, shape, strict=True)]
    if min(spare) < 0:
        return
    for starts in itertools.product(*({0, each} for each in spare)):
        yield padded[tuple(slice(at, at + size) for at, size in zip(starts, shape, strict=True))]


def _name(collate: Callable[[Any], Any]) -> str:
    name = getattr(collate, "__name__", type(collate).__name__)
    return f"the collate function {name}"
