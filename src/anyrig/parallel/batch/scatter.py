"""A batch divided between devices, whatever its structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

from ...devices.place import Places
from ...errors import BatchError, MoveError
from ...transfer.tree import Path, format_path, map_leaves
from ..device_ids import each_once
from ..shares.shares import Shares, choose_shares
from .cut import cut
from .nested import cut_nested
from .packed import cut_packed
from .rows import WHOLE, count_rows, splits


def scatter(
    value: Any,
    devices: Places,
    shares: Shares | Sequence[float] | None = None,
    dim: int = 0,
) -> list[Any]:
    """Return one value a device, in order: each with its rows of every tensor of `value`.

    Structure, types and sharing are kept. Divided are tensors, packed sequences (by sequences) and
    nested tensors (by their parts). Tensors without dimensions are copied to each device. All else
    (numbers, texts, None, objects) is handed to each as it is. A device that gets no rows gets
    tensors with none.

    Copies run on streams of their own and the host does not wait for them; host memory is pinned
    on the way. A part on the tensor's own device is a view. Differentiable, as often as wanted.

    Args:
        value: a tensor, or any nested structure.
        devices: a rig or a list, each device once.
        shares: how much each gets: `Shares`, or numbers that say it relative to each other. None
            divides evenly, as `torch.chunk` and `torch.nn.DataParallel` do: 10 rows on 8 devices
            are five times two.
        dim: along which dimension; a negative one counts from the end of each tensor.

    Raises:
        BatchError: a tensor lacks the dimension, or two have different numbers of rows along it.
        SharesError: there are not as many shares as devices.
        SpreadError: a device is named twice, or there are none.
    """
    each = each_once(devices)
    split = choose_shares("even" if shares is None else shares, each).split
    return divide(value, each, split, dim).values


class Divided(NamedTuple):
    """A batch that was divided."""

    values: list[Any]  # one for each device
    rows: tuple[int, ...] | None  # of each; None if nothing could be divided and all have the whole


def divide(
    tree: Any,
    devices: Sequence[torch.device],
    split: Callable[[int], Sequence[int]],
    dim: int = 0,
    name: Callable[[Path], str] = format_path,
) -> Divided:
    """Divide a batch as `scatter` does: one walk counts the rows, one for each device builds it.

    ``split(rows)`` says how many each device gets, and ``name(path)`` how an error names a place.
    """
    total = count_rows(tree, dim, name)
    rows = None if total is None else tuple(split(total))
    # The originals are kept beside their parts, so that no id is given to a second object.
    done: dict[int, tuple[Any, Sequence[Any]]] = {}

    def parts_of(leaf: Any) -> Sequence[Any]:
        if id(leaf) not in done:
            done[id(leaf)] = leaf, _cut(leaf, devices, rows, dim)
        return done[id(leaf)][1]

    try:
        values = [
            map_leaves(tree, lambda leaf, _: parts_of(leaf)[i], WHOLE)  # noqa: B023 - called here
            for i in range(len(devices))
        ]
    except MoveError as error:
        if not error.failure:
            raise
        raise BatchError(f"{error.failure}; pass what it holds") from error.__cause__
    return Divided(values, rows)


def scatter_rows(
    value: Any, devices: Sequence[torch.device], rows: Sequence[int], dim: int = 0
) -> list[Any]:
    """Scatter a value whose rows are divided already: ``rows[i]`` of them go to ``devices[i]``.

    Raises:
        BatchError: the value has another number of rows than these sum to.
    """

    def split(total: int) -> Sequence[int]:
        if total != sum(rows):
            raise BatchError(
                f"there are {total} rows to divide, but the parts have "
                f"{' + '.join(map(str, rows))} = {sum(rows)}; give rows for all of them, in order"
            )
        return rows

    return divide(value, devices, split, dim).values


def _cut(
    leaf: Any, devices: Sequence[torch.device], rows: tuple[int, ...] | None, dim: int
) -> Sequence[Any]:
    """Return the parts of a leaf on the devices, or itself for each."""
    if rows is not None and isinstance(leaf, PackedSequence):
        return cut_packed(leaf, rows, devices)
    if not isinstance(leaf, torch.Tensor):
        return [leaf] * len(devices)
    if rows is None or not splits(leaf):
        # One number is not worth a stream of its own.
        return [leaf.to(device, non_blocking=device.type != "cpu") for device in devices]
    if leaf.is_nested:
        return cut_nested(leaf, rows, devices)
    return cut(leaf, rows, devices, dim)
