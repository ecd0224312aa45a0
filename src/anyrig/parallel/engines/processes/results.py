"""The tensors of a part's result that have gradients, and a result with replaced tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ....errors import SpreadError
from ....transfer.tree import list_leaves, map_leaves
from ...losses.loss_part import LossPart
from ...marks import tensors_with_gradients


def learning_tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree that require gradients, each once, in the order of the tree.

    Raise SpreadError for such a tensor within an object that is not a container, whose gradients in
    one process would not reach another, and for a nested tensor: PyTorch's own functions in Python
    take none.
    """
    if type(tree) is LossPart:  # in most steps; the walk takes 0.1 ms
        leaves = [tree.value, tree.count, *tree.targets]
    else:
        leaves = [leaf for leaf, _ in list_leaves(tree)]
    found = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    if any(each.is_nested for each in found):
        raise SpreadError(
            "a nested tensor requires gradients, which do not cross from one process to another. "
            "Pass and return its components, or use the threads of plan=Replicas()"
        )
    known = set(map(id, found))
    others = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    if others and any(id(each) not in known for each in tensors_with_gradients(others)):
        raise SpreadError(
            f"a {type(tree).__name__} holds a tensor with a gradient in an object that is not "
            "a container, where gradients do not cross from one process to another. Pass and "
            "return tensors in containers, or use the threads of plan=Replicas()"
        )
    return found


def replace_tensors(tree: Any, by: Mapping[int, Tensor]) -> Any:
    """Return a tree with other tensors in place of those with these ids."""
    return map_leaves(tree, lambda leaf, _: by.get(id(leaf), leaf)) if by else tree
