"""Some rows of a batch, whatever its structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ....errors import BatchError
from ....transfer.containers import attributes_of, items_of, rebuild
from ....transfer.tree import Path, format_path
from ...batch.nested import cut_nested
from ...batch.packed import cut_packed
from ...batch.samples import count_samples, has_samples
from ..leaves import is_inner, leaves_of

GIVE_EMPTY = (
    "Give distribute(…, empty=function), which returns what the loader's collate_fn would return "
    "of no samples, such as empty=lambda: ([], [])"
)
_CUT = (Tensor, PackedSequence)
_GO_IN = object()


def rows_of(batch: Any) -> int:
    """Return how many rows a batch has.

    Raises:
        BatchError: its tensors disagree, or it has neither tensors nor a length.
    """
    rows = count_samples(batch)
    if rows is not None:
        return rows
    if isinstance(batch, (list, tuple)):
        return len(batch)
    raise BatchError(
        f"a batch of type {type(batch).__name__} has no rows to divide: it has no tensors with "
        "dimensions. Let each rank's loader yield batches of its own: distribute(…, divided=True)"
    )


def part_of(batch: Any, part: slice, rows: int) -> Any:
    """Return the rows `part` of a batch that has `rows` of them.

    Tensors are views; packed sequences and nested tensors are copied. A list or tuple without
    tensors that is as long as the batch has rows has an entry for each. All else is kept.
    """

    def take(value: Any, path: Path) -> Any:
        if isinstance(value, _CUT):
            return _cut(value, part, rows)
        if not _is_list(value) or len(value) != rows:
            return _GO_IN
        with_tensors = any(isinstance(leaf, _CUT) for _, leaf in leaves_of(value))
        return _GO_IN if with_tensors else value[part]

    return _map(batch, (), take)


def without_rows(batch: Any) -> Any:
    """Return a batch of one row without it; its tensors keep no memory.

    Where its tensors do not have one row each, as those of images and their boxes: a list or tuple
    with one entry has the sample in it, and so has each such field of a batch.

    Raises:
        BatchError: it cannot be told.
    """
    try:
        if rows_of(batch) == 1:
            return part_of(batch, slice(0, 0), 1)
    except BatchError:
        pass
    taken, unclear = [], []

    def take(value: Any, path: Path) -> Any:
        is_tensor = isinstance(value, Tensor) and value.dim() > 0
        if (is_tensor or _is_list(value)) and len(value) == 1:
            taken.append(path)
            return _cut(value, slice(0, 0), 1) if is_tensor else value[:0]
        if is_tensor:
            unclear.append(f"{format_path(path)} has shape {tuple(value.shape)}")
        return _GO_IN

    emptied = _map(batch, (), take)
    if unclear or not taken:
        raise BatchError(
            "a rank without samples needs a batch of none, where a global batch has fewer than "
            "there are ranks; and from this loader's batch of one it cannot be told what that is: "
            f"{' and '.join(unclear[:3]) or 'nothing in it counts samples'}. {GIVE_EMPTY}"
        )
    return emptied


def _map(value: Any, path: Path, take: Callable[[Any, Path], Any]) -> Any:
    """Return `value` with each part of it that `take` takes replaced; it says where to go in.

    Unlike `map_leaves` it asks about lists, which may have an entry for each row.
    """
    taken = take(value, path)
    if taken is not _GO_IN:
        return taken
    if not is_inner(value):
        return value
    items = [_map(item, (*path, part), take) for part, item in items_of(value)]
    attributes = {
        name: _map(kept, (*path, (".{}", name)), take)
        for name, kept in attributes_of(value).items()
    }
    return rebuild(value, items, attributes)


def _cut(leaf: Tensor | PackedSequence, part: slice, rows: int) -> Any:
    counts = (part.start, part.stop - part.start, rows - part.stop)
    if isinstance(leaf, PackedSequence):
        return cut_packed(leaf, counts, [leaf.data.device] * 3)[1]
    if not has_samples(leaf):
        return leaf
    if leaf.is_nested:
        return cut_nested(leaf, counts, [leaf.device] * 3)[1]
    rest = leaf.narrow(0, counts[0], counts[1])
    return rest if counts[1] else rest.clone()


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not hasattr(value, "_fields")
