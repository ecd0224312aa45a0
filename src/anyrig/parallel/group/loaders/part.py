"""Some rows of a batch, whatever its structure."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ....errors import BatchError
from ....transfer.containers import attributes_of, items_of, rebuild
from ....transfer.tree import Path, format_path
from ...batch.nested import cut_nested
from ...batch.packed import cut_packed
from ...batch.rows import count_rows, splits
from ..leaves import is_inner, leaves_of

_MOST_TOLD = 3


def rows_of(batch: Any) -> int:
    """Return how many rows a batch has.

    Raises:
        BatchError: its tensors disagree, or it has neither tensors nor a length.
    """
    rows = count_rows(batch)
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
    if isinstance(batch, (Tensor, PackedSequence)):
        return _cut(batch, part, rows)
    if _has_entry_of_each_row(batch, rows):
        return batch[part]
    if not is_inner(batch):
        return batch
    items = [part_of(item, part, rows) for _, item in items_of(batch)]
    attributes = {name: part_of(kept, part, rows) for name, kept in attributes_of(batch).items()}
    return rebuild(batch, items, attributes)


def without_rows(batch: Any) -> Any:
    """Return a batch of one row without it; its tensors keep no memory.

    Where its tensors do not have one row each, as those of images and their boxes: a list or tuple
    with one entry has the sample in it, and so has each such field of a batch.

    Raises:
        BatchError: it cannot be told.
    """
    try:
        rows: int | None = rows_of(batch)
    except BatchError:
        rows = None
    if rows == 1:
        return part_of(batch, slice(0, 0), 1)
    emptying = _Emptying()
    emptied = emptying.of(batch, ())
    if emptying.unclear or not emptying.done:
        unclear = " and ".join(emptying.unclear[:_MOST_TOLD]) or "nothing in it counts samples"
        raise BatchError(
            "a rank without samples needs a batch of none, where a global batch has fewer than "
            "there are ranks; and from this loader's batch of one it cannot be told what that is: "
            f"{unclear}. Give distribute(…, empty=function), which returns what the loader's "
            "collate_fn would return of no samples, such as empty=lambda: ([], [])"
        )
    return emptied


class _Emptying:
    """Takes the only sample out of a batch.

    Attributes:
        done: where it was.
        unclear: what has neither one row nor one entry.
    """

    def __init__(self) -> None:
        self.done: list[str] = []
        self.unclear: list[str] = []

    def of(self, value: Any, path: Path) -> Any:
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields") and len(value) == 1:
            self.done.append(format_path(path))
            return value[:0]
        if isinstance(value, Tensor) and value.dim():
            if len(value) == 1:
                self.done.append(format_path(path))
                return _cut(value, slice(0, 0), 1)
            self.unclear.append(f"{format_path(path)} has shape {tuple(value.shape)}")
        if not is_inner(value):
            return value
        items = [self.of(item, (*path, part)) for part, item in items_of(value)]
        attributes = {
            name: self.of(kept, (*path, (".{}", name)))
            for name, kept in attributes_of(value).items()
        }
        return rebuild(value, items, attributes)


def _cut(leaf: Tensor | PackedSequence, part: slice, rows: int) -> Any:
    counts = (part.start, part.stop - part.start, rows - part.stop)
    if isinstance(leaf, PackedSequence):
        return cut_packed(leaf, counts, [leaf.data.device] * 3)[1]
    if not splits(leaf):
        return leaf
    if leaf.is_nested:
        return cut_nested(leaf, counts, [leaf.device] * 3)[1]
    rest = leaf.narrow(0, counts[0], counts[1])
    return rest if counts[1] else rest.clone()


def _has_entry_of_each_row(value: Any, rows: int) -> bool:
    return (
        isinstance(value, (list, tuple))
        and not hasattr(value, "_fields")
        and len(value) == rows
        and not any(isinstance(leaf, (Tensor, PackedSequence)) for _, leaf in leaves_of(value))
    )
