"""A batch divided between devices, whatever its structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from ...devices.place import Places
from ...errors import BatchError
from ...transfer.containers import Part, attributes_of, is_container, items_of, rebuild
from ...transfer.tree import ATOM_TYPES, Path, format_path
from ..replicas.each_once import each_once
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
    return scatter_counted(value, devices, shares, dim).values


@dataclass(frozen=True)
class Scattered:
    """What scattering made.

    Attributes:
        values: one for each device.
        rows: how many each has; None if nothing could be divided and all have the whole.
    """

    values: list[Any]
    rows: tuple[int, ...] | None


def scatter_counted(
    value: Any,
    devices: Places,
    shares: Shares | Sequence[float] | None = None,
    dim: int = 0,
) -> Scattered:
    """Do as `scatter` does, and say how many rows each device got."""
    each = each_once(devices)
    split = choose_shares("even" if shares is None else shares, each).split
    return _scatter(value, each, split, dim, format_path)


def scatter_call(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    devices: Sequence[torch.device],
    split: Callable[[int], Sequence[int]],
    dim: int = 0,
) -> Scattered:
    """Scatter the arguments of one call; `values` are pairs of arguments and keyword arguments.

    All of them share one number of rows, and ``split(rows)`` says how many each device gets.
    `devices` are resolved, and each is there once.
    """
    return _scatter((args, dict(kwargs)), devices, split, dim, name_argument)


def scatter_rows(
    value: Any, devices: Sequence[torch.device], rows: Sequence[int], dim: int = 0
) -> list[Any]:
    """Scatter a value whose rows are divided already: ``rows[i]`` of them go to ``devices[i]``.

    Raises:
        BatchError: the value has another number of rows than these sum to.
    """
    total = count_rows(value, dim)
    if total is not None and total != sum(rows):
        raise BatchError(
            f"there are {total} rows to divide, but the parts have "
            f"{' + '.join(map(str, rows))} = {sum(rows)}; give rows for all of them, in order"
        )
    return list(_Scattering(devices, None if total is None else rows, dim).divide(value))


def _scatter(
    tree: Any,
    devices: Sequence[torch.device],
    split: Callable[[int], Sequence[int]],
    dim: int,
    name: Callable[[Path], str],
) -> Scattered:
    total = count_rows(tree, dim, name)
    rows = None if total is None else tuple(split(total))
    return Scattered(list(_Scattering(devices, rows, dim).divide(tree)), rows)


class _Scattering:
    """One pass over one tree, which `count_rows` has been through: it has no cycle."""

    def __init__(
        self, devices: Sequence[torch.device], rows: Sequence[int] | None, dim: int
    ) -> None:
        self._devices = devices
        self._rows = rows
        self._dim = dim
        # What lies at two places is divided once. The originals are kept beside the parts, so that
        # no id is given to a second object.
        self._done: dict[int, tuple[Any, Sequence[Any]]] = {}

    def divide(self, value: Any) -> Sequence[Any]:
        """Return one value for each device."""
        if type(value) in ATOM_TYPES:
            return [value] * len(self._devices)
        known = self._done.get(id(value))
        if known is None:
            known = self._done[id(value)] = value, self._divide(value)
        return known[1]

    def _divide(self, value: Any) -> Sequence[Any]:
        if self._rows is not None and splits(value):
            return self._cut(value, self._rows)
        if isinstance(value, torch.Tensor):
            # One number is not worth a stream of its own.
            return [value.to(to, non_blocking=to.type != "cpu") for to in self._devices]
        if is_container(value) and not isinstance(value, WHOLE):
            return self._divide_container(value)
        return [value] * len(self._devices)

    def _cut(self, value: Any, rows: Sequence[int]) -> Sequence[Any]:
        if isinstance(value, PackedSequence):
            return cut_packed(value, rows, self._devices)
        if value.is_nested:
            return cut_nested(value, rows, self._devices)
        return cut(value, rows, self._devices, self._dim)

    def _divide_container(self, container: Any) -> Sequence[Any]:
        before = [item for _, item in items_of(container)]
        items = [self.divide(item) for item in before]
        kept = attributes_of(container)
        attributes = {name: self.divide(attribute) for name, attribute in kept.items()}
        if all(
            part is old
            for old, parts in zip(
                [*before, *kept.values()], [*items, *attributes.values()], strict=True
            )
            for part in parts
        ):
            return [container] * len(self._devices)
        try:
            return [
                rebuild(
                    container,
                    [parts[position] for parts in items],
                    {name: parts[position] for name, parts in attributes.items()},
                )
                for position in range(len(self._devices))
            ]
        except Exception as error:
            raise BatchError(
                f"{type(container).__name__} cannot be built again with its tensors replaced "
                f"({type(error).__name__}: {error}); pass what it holds"
            ) from error


def name_argument(path: Path) -> str:
    """Return a place in ``(args, kwargs)`` as the caller wrote it."""
    (_, which), (_, key), *rest = path
    within = tuple[Part, ...](rest)
    place = f"argument {key}" if which == 0 else f"argument {key!r}"
    return place + (format_path(within) if within else "")
