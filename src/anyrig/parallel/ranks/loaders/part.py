"""Some of the samples of a batch of any structure."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ....errors import BatchError
from ....transfer.leaves import GO_IN, leaves_of, replace_parts
from ....transfer.tree import Path, format_path
from ...parts.samples import count_samples as count_tensor_samples
from ...parts.samples import is_list
from ...parts.scatter import cut_leaf

GIVE_EMPTY = (
    "Give distribute(…, empty=function), which returns what the loader's collate_fn would return "
    "for no samples, such as empty=lambda: ([], [])"
)
_CUT = (Tensor, PackedSequence)


def count_samples(batch: Any) -> int:
    """Return how many samples a batch has; raise BatchError if the batch does not show it."""
    count = count_tensor_samples(batch)
    if count is not None:
        return count
    if isinstance(batch, (list, tuple)):
        return len(batch)
    raise BatchError(
        f"a batch of type {type(batch).__name__} has no samples to divide: it has no tensors with "
        "dimensions. Let each rank's loader yield batches of its own: distribute(…, divided=True)"
    )


def part_of(batch: Any, part: slice, count: int) -> Any:
    """Return the samples `part` of a batch that has `count` samples.

    Tensors are views; packed sequences and nested tensors are copies. A list or tuple of length
    `count` without tensors has a sample in each entry. Everything else is kept whole.
    """

    def take(value: Any, _: Path) -> Any:
        if isinstance(value, _CUT):
            return _cut(value, part, count)
        if not is_list(value) or len(value) != count:
            return GO_IN
        return GO_IN if any(isinstance(leaf, _CUT) for _, leaf in leaves_of(value)) else value[part]

    return replace_parts(batch, take)


def remove_sample(batch: Any) -> Any:
    """Return a batch of one sample without the sample; its tensors keep no memory.

    If the tensors do not have size 1, as those of images and their boxes, the sample is in each
    list or tuple of one entry. Raise BatchError if the batch does not show where its sample is.
    """
    try:
        if count_samples(batch) == 1:
            return part_of(batch, slice(0, 0), 1)
    except BatchError:
        pass
    taken, unclear = [], []

    def take(value: Any, path: Path) -> Any:
        is_tensor = isinstance(value, Tensor) and value.dim() > 0
        if (is_tensor or is_list(value)) and len(value) == 1:
            taken.append(path)
            return _cut(value, slice(0, 0), 1) if is_tensor else value[:0]
        if is_tensor:
            unclear.append(f"{format_path(path)} has shape {tuple(value.shape)}")
        return GO_IN

    emptied = replace_parts(batch, take)
    if unclear or not taken:
        raise BatchError(
            "a global batch has too few samples for all ranks, or would leave a rank a single "
            "sample, which distribute(…, singles=True) allows. So a rank needs a batch without "
            "samples, whose form this loader's batch of one sample does not show: "
            f"{' and '.join(unclear[:3]) or 'nothing in it counts samples'}. {GIVE_EMPTY}"
        )
    return emptied


def _cut(leaf: Tensor | PackedSequence, part: slice, count: int) -> Any:
    counts = (part.start, part.stop - part.start, count - part.stop)
    samples = cut_leaf(leaf, [leaf.data.device] * 3, counts, 0)[1]
    # A view of no samples would keep the memory of all samples.
    return samples.clone() if isinstance(samples, Tensor) and not samples.numel() else samples
