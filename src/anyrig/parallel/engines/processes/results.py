"""The tensors of a part's result that have gradients, and a result with others in their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ....transfer.tree import list_leaves, map_leaves


def learning_tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree that require gradients, each once, in the order of the tree."""
    return [
        leaf for leaf, _ in list_leaves(tree) if isinstance(leaf, Tensor) and leaf.requires_grad
    ]


def replace_tensors(tree: Any, by: Mapping[int, Tensor]) -> Any:
    """Return a tree with other tensors in place of those with these ids."""
    return map_leaves(tree, lambda leaf, _: by.get(id(leaf), leaf))
