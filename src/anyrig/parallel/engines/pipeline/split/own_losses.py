"""Losses that a module computes itself, and what their means divide by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from .....transfer.tree import list_leaves
from ....losses.means_of_parts import AddUp
from ....losses.target_means import TargetMean
from .operations import call_node, fill
from .part_of_loss import Divisor
from .refusal import Place


@dataclass(frozen=True)
class OwnLoss:
    """A mean over targets that a module computes.

    Attributes:
        name: of the value that has the loss's `Divisor`.
        place: the line of code that computes the loss.
        mean: the criterion and its targets, as nodes.
        nodes: the operations that make the targets of arguments; None if they need other values.
    """

    name: str
    place: Place
    mean: TargetMean
    nodes: Sequence[fx.Node] | None

    def count(self, values: Mapping[str, Any]) -> Tensor:
        """Return what the mean divides by, given the values of a call's arguments."""
        assert self.nodes is not None
        made: dict[fx.Node, Any] = {}
        devices = [
            leaf.device
            for node in self.nodes
            if node.op == "placeholder"
            for leaf, _ in list_leaves(values[str(node.target)])
            if isinstance(leaf, Tensor)
        ]
        with torch.no_grad():
            for node in self.nodes:
                if node.op == "placeholder":
                    made[node] = values[str(node.target)]
                elif is_device(node):
                    made[node] = devices[0]
                else:
                    args, kwargs = (
                        fill(each, made.__getitem__) for each in (node.args, node.kwargs)
                    )
                    made[node] = call_node(node, args, kwargs)
            target = made[self.mean.target]
            return TargetMean(self.mean.known, target, target).count(target.device)


def divisors_of(
    losses: Sequence[OwnLoss],
    values: Mapping[str, Any],
    samples: Sequence[int],
    add_up: AddUp,
) -> list[dict[str, Divisor]]:
    """Return the divisors of losses by name, for each part of a call.

    Args:
        losses: those that the module computes.
        values: the arguments of the whole call.
        samples: the number of samples of each part.
        add_up: adds up what a loss divides by over all pipelines.
    """
    total = sum(samples) or 1
    counts = {loss.name: add_up(loss.count(values)) for loss in losses}
    return [
        {name: (count, share * n / total) for name, (count, share) in counts.items()}
        for n in samples
    ]


def is_device(node: fx.Node) -> bool:
    """Return whether an operation reads the device of a value."""
    return node.target is getattr and node.args[1:2] == ("device",)
