"""Calls with one sample, for which code that compares sizes may take another branch.

::

    if positions.shape[0] != x.shape[0]:            # true for several samples, false for one
        positions = positions.expand(x.shape[0], -1)

If the recording for one sample of the example differs, blocks have both, and each micro-batch says
whether it has one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..micro_batches import cut_call
from .arguments import Call
from .example_facts import FactCheck
from .recording import Recording

# The name of the value that says whether a micro-batch has one sample.
ONE_SAMPLE = "has one sample"


@dataclass(frozen=True)
class SampleCount:
    """Where the number of samples of a call is read.

    Attributes:
        name: the argument.
        leaf: which of the leaves of its nested containers.
        dim: the dimension of this tensor.
    """

    name: str
    leaf: int
    dim: int

    def is_one(self, values: Mapping[str, Any]) -> bool:
        """Return whether the arguments of a call have one sample."""
        leaves = pytree.tree_leaves(values[self.name])
        return self.leaf < len(leaves) and bool(leaves[self.leaf].shape[self.dim] == 1)


def take_one_sample(example: Call, dim: int) -> Call | None:
    """Return the first sample of an example; None if it has one sample, or none that are known."""
    args, kwargs = example
    try:
        parts, is_divided = cut_call(tuple(args), dict(kwargs), None, lambda n: (1, n - 1), dim)
    except Exception:  # a batch that cannot be divided is refused in its call
        return None
    if not is_divided or len(parts) < 2 or not parts[1].samples:
        return None
    return parts[0].args, parts[0].kwargs


def find_sample_count(several: Mapping[str, Any], one: Mapping[str, Any]) -> SampleCount | None:
    """Return where the number of samples is read, given two examples; None if nowhere."""
    for name, value in several.items():
        pairs = zip(pytree.tree_leaves(value), pytree.tree_leaves(one[name]), strict=False)
        for leaf, (a, b) in enumerate(pairs):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                dims = [d for d in range(b.ndim) if b.shape[d] == 1 != a.shape[d]]
                if dims:
                    return SampleCount(name, leaf, dims[0])
    return None


def is_same(a: Recording, b: Recording) -> bool:
    """Return whether two recordings have the same operations and depend on the same facts."""
    return _describe(a.graph) == _describe(b.graph)


def _describe(graph: fx.Graph) -> list[Any]:
    place = {node: i for i, node in enumerate(graph.nodes)}
    return [
        (
            node.op,
            node.target.fact if isinstance(node.target, FactCheck) else node.target,
            fx.node.map_arg((node.args, node.kwargs), lambda used: f"node {place[used]}"),
        )
        for node in graph.nodes
    ]
