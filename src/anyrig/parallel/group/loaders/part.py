"""Some rows of a batch, whatever its structure."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ....errors import BatchError
from ....transfer.containers import attributes_of, items_of, rebuild
from ...batch.nested import cut_nested
from ...batch.packed import cut_packed
from ...batch.rows import count_rows, splits
from ..leaves import is_inner, leaves_of


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

    Raises:
        BatchError: a tensor has another number of rows, or the parts disagree.
    """
    if (rows := rows_of(batch)) != 1:
        raise BatchError(
            f"a batch of one sample has {rows} rows by the first dimension of its tensors, so it "
            "cannot be told what a batch of no samples is. A rank without samples needs one, "
            "where a global batch has fewer than there are ranks: give "
            "distribute(…, empty=function), which returns it"
        )
    return part_of(batch, slice(0, 0), 1)


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
