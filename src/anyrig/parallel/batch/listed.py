"""A list of samples among the arguments of a call, which is divided by its entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...transfer.beside import copy_in_order
from ...transfer.tree import map_leaves


class Listed:
    """A list or tuple that has a sample in each entry. It stands for it while a batch is divided.

    It is no dataclass, so a walk over a tree does not enter it.
    """

    def __init__(self, entries: Any) -> None:
        self.entries = entries

    def cut(self, counts: Sequence[int], devices: Sequence[torch.device] | None) -> list[Any]:
        """Return ``counts[i]`` entries for each i, on ``devices[i]`` unless `devices` is None."""
        parts, start = [], 0
        for index, count in enumerate(counts):
            part = self.entries[start : start + count]
            parts.append(part if devices is None else _copy(part, devices[index]))
            start += count
        return parts


def is_list(value: Any) -> bool:
    """Return whether `value` is a list or a tuple without field names."""
    return isinstance(value, (list, tuple)) and not hasattr(value, "_fields")


def lists_dicts(value: Any) -> bool:
    """Say whether `value` is a list of dicts that have a key in common.

    Dicts without one are different things, not several samples.
    """
    if not is_list(value) or not value or not all(isinstance(each, Mapping) for each in value):
        return False
    return bool(set.intersection(*(set(each) for each in value)))


def _copy(part: Any, device: torch.device) -> Any:
    def copy(leaf: Any, _: object) -> Any:
        return copy_in_order(leaf, device) if isinstance(leaf, torch.Tensor) else leaf

    return map_leaves(part, copy)
