"""Dividing a batch of any structure between devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...devices.place import Places
from ...errors import BatchError, MoveError
from ...transfer.arguments import move_tensors
from ...transfer.beside import copy_in_order
from ...transfer.containers import has_method
from ...transfer.tree import Path, format_path, map_leaves
from ..device_ids import resolve_devices
from ..shares.shares import Shares, choose_shares
from .cut import cut
from .find_listed import UnclearError, mark_listed
from .objects import has_tensors, notion_of, refuse_undivided, take_samples
from .ragged import cut_nested, cut_packed
from .samples import count_samples
from .with_samples import Listed, has_samples, is_whole

_OF_THE_CALLER = 8  # frames from `divide` to the line that calls a model


def scatter(
    value: Any, devices: Places, shares: Shares | Sequence[float] | None = None, dim: int = 0
) -> list[Any]:
    """Return one value for each device, in order, with this device's samples of each tensor.

    Structure, types and sharing are kept. Tensors are divided along `dim`, packed sequences by
    sequences, nested tensors by their parts, a list of samples, each a dict, by its entries.
    Tensors without dimensions are copied to each device; all other leaves (numbers, strings, None,
    objects) are passed on unchanged. A device without samples gets empty tensors. Copies do not
    block the host. A part on the tensor's device is a view. Gradients of any order are supported.

    Args:
        value: a tensor, or any nested structure.
        devices: a rig or a list, each device once.
        shares: a `Shares` object, or one relative weight for each device. None divides evenly, as
            `torch.chunk` does: 10 samples on 8 devices are 2 on each of the first 5.
        dim: a negative value counts from the end of each tensor.

    Raises:
        BatchError: a tensor has no dimension `dim`, or two tensors differ in size along it.
        SharesError: the number of shares is not that of the devices.
        SpreadError: a device is named twice, or no device is named.
    """
    resolved = resolve_devices(devices)
    split = choose_shares("even" if shares is None else shares, resolved).split
    return divide(value, resolved, split, dim).values


class Divided(NamedTuple):
    """A divided batch."""

    values: list[Any]  # one for each device
    samples: tuple[int, ...] | None  # of each device; None if nothing was divided


def divide(
    tree: Any,
    devices: Sequence[torch.device] | None,
    split: Callable[[int], Sequence[int]],
    dim: int = 0,
    name: Callable[[Path], str] = format_path,
    is_call: bool = False,
    expected: int | None = None,
) -> Divided:
    """Divide a batch as `scatter` does: one walk counts the samples, one for each part cuts.

    ``split(total)`` returns each part's samples; ``name(path)`` formats a path for messages. If
    `devices` is None, each part stays on the device of its tensor. There is one part if nothing can
    be divided and `devices` is None, or if a list of the call may be read in two ways; this warns.
    For `is_call` and `expected`, see `mark_listed`.
    """
    try:
        with _naming_contents():
            tree = mark_listed(tree, dim, name, is_call, expected)
    except UnclearError as error:
        if not is_call:
            raise
        warnings.warn(
            f"{error}. The first device computes this batch alone", stacklevel=_OF_THE_CALLER
        )
        return Divided([tree if devices is None else move_tensors(tree, devices[0])], None)
    total = count_samples(tree, dim, name)
    if is_call and expected is not None and total not in (None, expected):
        raise BatchError(
            f"samples={expected} was given, but the arguments have {total} samples along dimension "
            f"{dim}. Give the number of samples in the arguments, or leave samples= out"
        )
    samples = None if total is None else tuple(split(total))
    parts = len(devices if devices is not None else samples or (1,))
    # By id: each leaf and its parts. Keeping the leaf alive keeps its id unique.
    done: dict[int, tuple[Any, Sequence[Any]]] = {}

    def cut_once(leaf: Any, path: Path) -> Sequence[Any]:
        if id(leaf) not in done:
            if isinstance(leaf, (Tensor, PackedSequence)):
                to = devices if devices is not None else [_device_of(leaf)] * parts
                done[id(leaf)] = leaf, cut_leaf(leaf, to, samples, dim)
            elif isinstance(leaf, Listed) and samples is not None:
                done[id(leaf)] = leaf, leaf.cut(samples, devices)
            else:
                pieces = _cut_object(leaf, parts, devices, samples, dim, lambda: name(path))
                done[id(leaf)] = leaf, pieces
        return done[id(leaf)][1]

    def part_of(index: int) -> Any:
        return map_leaves(
            tree, lambda leaf, path: cut_once(leaf, path)[index], is_whole, movable=True
        )

    with _naming_contents():
        values = list(map(part_of, range(parts)))
    return Divided(values, samples)


@contextmanager
def _naming_contents() -> Iterator[None]:
    """Raise BatchError in place of a MoveError about an object that cannot be rebuilt."""
    try:
        yield
    except MoveError as error:
        if not error.failure:
            raise
        raise BatchError(f"{error.failure}; pass its contents") from error.__cause__


def scatter_samples(
    value: Any,
    devices: Sequence[torch.device],
    counts: Sequence[int],
    dim: int = 0,
) -> list[Any]:
    """Divide a value that has ``sum(counts)`` samples: ``counts[i]`` samples for ``devices[i]``."""
    return divide(value, devices, exactly(counts), dim, expected=sum(counts)).values


def exactly(counts: Sequence[int]) -> Callable[[int], Sequence[int]]:
    """Return a function that returns `counts`; it raises BatchError for another total."""

    def split(total: int) -> Sequence[int]:
        if total != sum(counts):
            raise BatchError(
                f"there are {total} samples to divide, but the parts have "
                f"{' + '.join(map(str, counts))} = {sum(counts)}; both numbers must be equal"
            )
        return counts

    return split


def _device_of(leaf: Tensor | PackedSequence) -> torch.device:
    return leaf.data.device if isinstance(leaf, PackedSequence) else leaf.device


def _cut_object(
    leaf: Any,
    parts: int,
    devices: Sequence[torch.device] | None,
    samples: tuple[int, ...] | None,
    dim: int,
    name: Callable[[], str],
) -> Sequence[Any]:
    """Return the parts of a leaf that is not a tensor, on ``devices``; the leaf itself if it has
    neither samples nor tensors.
    """
    notion = notion_of(leaf)
    if samples is not None and notion is not None:
        pieces = take_samples(leaf, notion, samples, dim, name())
        return pieces if devices is None else list(map(move_tensors, pieces, devices))
    if samples is not None and _has_entries(leaf, dim, sum(samples)):
        before = [slice(None)] * (dim % len(leaf.shape))
        spans = pairwise(accumulate(samples, initial=0))
        indices = [(*before, slice(start, stop)) for start, stop in spans]
        return [leaf[index] for index in indices]
    if parts > 1:
        refuse_undivided(leaf, name())
    return [leaf if devices is None else move_tensors(leaf, devices[0])] * parts


def _has_entries(leaf: Any, dim: int, samples: int) -> bool:
    """Return whether `leaf` is an array, of NumPy for example, with an entry for each sample."""
    shape = getattr(leaf, "shape", None) if hasattr(type(leaf), "shape") else None
    if not isinstance(shape, tuple) or not -len(shape) <= dim < len(shape):
        return False
    return bool(shape[dim] == samples) and has_method(leaf, "__getitem__") and not has_tensors(leaf)


def cut_leaf(
    leaf: Any, devices: Sequence[torch.device], samples: tuple[int, ...] | None, dim: int
) -> Sequence[Any]:
    """Return the part of a leaf for each device: the leaf itself if it is not divided."""
    if samples is not None and isinstance(leaf, PackedSequence):
        return cut_packed(leaf, samples, devices)
    if not isinstance(leaf, torch.Tensor):
        return [leaf] * len(devices)
    if samples is None or not has_samples(leaf):
        return [copy_in_order(leaf, device) for device in devices]
    if leaf.is_nested:
        return cut_nested(leaf, samples, devices)
    return cut(leaf, samples, devices, dim)
