"""What of a batch has samples: its tensors, packed sequences, lists of samples, and objects."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from ...transfer.arguments import move_tensors
from .objects import is_object, notion_of
from .ragged import count_sequences


class Listed:
    """A list that has a sample in each entry, while a batch is divided.

    It is not a dataclass, so a walk over a tree does not enter it.
    """

    def __init__(self, entries: Any) -> None:
        self.entries = entries

    def cut(self, counts: Sequence[int], devices: Sequence[torch.device] | None) -> list[Any]:
        """Return ``counts[i]`` entries for each i, on ``devices[i]`` unless `devices` is None."""
        parts, start = [], 0
        for index, count in enumerate(counts):
            part = self._take(start, start + count)
            parts.append(part if devices is None else move_tensors(part, devices[index]))
            start += count
        return parts

    def _take(self, start: int, stop: int) -> Any:
        if isinstance(self.entries, deque):
            return deque(islice(self.entries, start, stop), self.entries.maxlen)
        return self.entries[start:stop]


def is_list(value: Any) -> bool:
    """Return whether `value` is a sequence of entries: a list, or a tuple without field names."""
    if isinstance(value, tuple):
        is_structure = isinstance(value, torch.Size) or hasattr(type(value), "n_sequence_fields")
        return not is_structure and not hasattr(value, "_fields")
    return isinstance(value, (list, deque, range, array))


def is_whole(value: Any) -> bool:
    """Return whether `value` is divided as a whole, not tensor by tensor."""
    return isinstance(value, (PackedSequence, Listed)) or is_object(value)


def has_samples(leaf: Any) -> bool:
    """Return whether a leaf shows how many samples the batch has, and is divided by them."""
    if isinstance(leaf, torch.Tensor):
        return leaf.is_nested or leaf.dim() > 0
    return is_whole(leaf)


def count_of(leaf: Any, dim: int) -> int | None:
    """Return the sample count of a leaf with samples; None for a tensor without dimension `dim`."""
    if isinstance(leaf, Listed):
        return len(leaf.entries)
    if isinstance(leaf, PackedSequence):
        return count_sequences(leaf)
    if not isinstance(leaf, torch.Tensor):
        notion = notion_of(leaf)
        return None if notion is None else notion.count(leaf, dim)
    return int(leaf.size(dim)) if -leaf.dim() <= dim < leaf.dim() else None


def describe_leaf(leaf: Any) -> str:
    """Return what a leaf with samples is, for an error message."""
    if isinstance(leaf, PackedSequence):
        return "a packed sequence"
    if isinstance(leaf, Listed):
        return f"a list of {len(leaf.entries)}"
    if not isinstance(leaf, torch.Tensor):
        return f"a {type(leaf).__name__}"
    return "nested" if leaf.is_nested else f"shape {tuple(leaf.shape)}"
