"""What every rank has of something, on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from torch import Tensor

from ....errors import RankMismatchError
from ....transfer.containers import Part, attributes_of, items_of, rebuild
from ....transfer.tree import Path, format_path
from ...batch.gather import gather
from ..leaves import is_inner, leaves_of
from ..membership import join_group
from .exchange import exchange
from .row_order import row_order

_CALL = "gather_over_ranks()"
_ONE_A_SAMPLE = (
    ". For one entry a sample, give a tensor with a row for each, or a list without tensors"
)


def gather_over_ranks(value: Any, *, loader: Any = None) -> Any:
    """Return what all ranks gave as one nested value of the same structure, on every rank.

    ::

        scores = anyrig.gather_over_ranks(model(x))                # of the global batch

        for x, _ in loader:                                        # from anyrig.distribute()
            scores.append(model(x))
        scores = anyrig.gather_over_ranks(torch.cat(scores), loader=loader)   # of the epoch

    * Tensors are joined along dimension 0, rank by rank, whatever their numbers of rows; shorter
      ones are padded with zeros in other dimensions. Those without dimensions become a vector.
      They have no graph, and lie where this rank's lies.
    * Lists without tensors in them are joined like rows.
    * Dicts, tuples, named tuples, dataclasses and lists with tensors keep their structure.
    * None stays. Of anything else, a number or a text, there is a list with one for each rank.

    Without `loader` the rows of a batch from `distribute` are in the order of its global batch.
    Tensors travel as their bytes, by one collective; the rest is pickled, by ranks of one program.
    In a process that is the only rank, the result is of its value alone.

    Args:
        value: any nested structure.
        loader: a loader from `distribute` (or with a `DistributedSampler`): rows of the whole loop
            are returned in the order of its samples, without those that padding had repeated.

    Raises:
        RankMismatchError: on every rank: two ranks differ in structure, or one gave what cannot be
            sent; the message says which rank, and where.
    """
    group = join_group()
    values = [value] if group is None else exchange(_CALL, value, group)
    return _Joining(value, loader).join(values)


class _Joining:
    """One pass over the values of all ranks; what it refuses, it refuses on every rank."""

    def __init__(self, mine: Any, loader: Any) -> None:
        self._devices = {
            place: leaf.device for place, leaf in leaves_of(mine) if isinstance(leaf, Tensor)
        }
        self._loader = loader
        self._order = cache(lambda *rows: row_order(loader, rows))

    def join(self, values: Sequence[Any], path: Path = ()) -> Any:
        """Return one value."""
        if any(isinstance(value, Tensor) for value in values):
            return self._join_tensors(values, path)
        if all(isinstance(value, list) for value in values) and not _has_tensors(values):
            joined = [entry for value in values for entry in value]
            if self._loader is None:
                return joined
            return [joined[i] for i in self._order(*map(len, values)).tolist()]
        if any(map(is_inner, values)):
            return self._join_containers(values, path)
        return None if all(value is None for value in values) else list(values)

    def _join_tensors(self, values: Sequence[Any], path: Path) -> Tensor:
        _compare(list(map(_describe, values)), str, path)
        device = self._devices[format_path(path)]
        joined: Tensor = gather([tensor.detach() for tensor in values], device, padding=0.0)
        if self._loader is None or not values[0].dim():
            return joined
        return joined[self._order(*map(len, values)).to(device)]

    def _join_containers(self, values: Sequence[Any], path: Path) -> Any:
        _compare(list(map(_describe, values)), str, path)
        every = [_contents(value) for value in values]
        _compare([contents.keys() for contents in every], _names, path, _ONE_A_SAMPLE)
        joined = {
            part: self.join([contents[part] for contents in every], (*path, part))
            for part in every[0]
        }
        first = values[0]
        items = [joined[part] for part, _ in items_of(first)]
        return rebuild(first, items, {name: joined[".{}", name] for name in attributes_of(first)})


def _contents(container: Any) -> dict[Part, Any]:
    named = {(".{}", name): value for name, value in attributes_of(container).items()}
    return dict(items_of(container)) | named


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for _, leaf in leaves_of(value))


def _compare(
    found: Sequence[Any], describe: Callable[[Any], str], path: Path, remedy: str = ""
) -> None:
    """Raise RankMismatchError if what the ranks have at `path` is not the same."""
    for rank, other in enumerate(found):
        if other != found[0]:
            raise RankMismatchError(
                f"{_CALL} needs the same structure on every rank: rank 0 has {describe(found[0])} "
                f"at {format_path(path)}, but rank {rank} has {describe(other)}{remedy}"
            )


def _names(parts: Iterable[Part]) -> str:
    return ", ".join(str(key) for _, key in parts) or "nothing"


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {value.dim()}-dimensional tensor of {dtype}"
    return f"a value of type {type(value).__name__}"
