"""The leaves of a nested value with their places, in an order that is the same on every rank.

As in `tree`, dicts, lists, tuples, named tuples and dataclasses are entered. Here numbers, strings
and None are leaves, too. An object that appears in two places counts as two leaves, because another
rank may have two objects there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from .containers import children_of, is_container, with_children
from .tree import Path, format_path, walk_leaves

# Sets are leaves because equal sets may be iterated in different orders.
_LEAVES = (set, frozenset, torch.Size, PackedSequence)

GO_IN = object()


def leaves_of(value: Any) -> list[tuple[str, Any]]:
    """Return the leaves of `value` with their places as strings, sorted by place."""
    leaves = [(format_path(path), leaf) for path, leaf in walk_leaves(value, _LEAVES)]
    return sorted(leaves, key=lambda pair: pair[0])


def replace_parts(value: Any, replacement: Callable[[Any, Path], Any], path: Path = ()) -> Any:
    """Return `value` with its parts replaced, from the outside in.

    ``replacement(part, path)`` returns the new part, or `GO_IN` to have the parts of a container
    replaced and any other object kept.
    """
    replaced = replacement(value, path)
    if replaced is not GO_IN:
        return replaced
    if not is_inner(value):
        return value
    before = children_of(value)
    children = [replace_parts(child, replacement, (*path, part)) for part, child in before]
    return with_children(value, before, children)


def is_inner(value: Any) -> bool:
    """Return whether `value` is a container that is entered."""
    return is_container(value) and not isinstance(value, _LEAVES)
