"""Losses that a module computes itself: where they are recorded, and what their means divide by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from .....transfer.tree import list_leaves
from ....losses.means_of_parts import AddUp
from ....losses.target_means import TargetMean, read_mean
from .operations import call_node, fill
from .part_of_loss import Divisor, PartOfLoss
from .recording import Recording
from .refusal import Place
from .together import aliased_inputs, changed_inputs

# What reads the form of a tensor, and none of its elements.
_FORMS = ("shape", "ndim", "dtype", "device", "size", "dim", "numel", "stride")


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
                elif _is_device(node):
                    made[node] = devices[0]
                else:
                    args, kwargs = (
                        fill(each, made.__getitem__) for each in (node.args, node.kwargs)
                    )
                    made[node] = call_node(node, args, kwargs)
            target = made[self.mean.target]
            return TargetMean(self.mean.known, target, target).count(target.device)


def divide_losses(recording: Recording, module: nn.Module) -> None:
    """Let the losses that a module computes be those of parts, and list them in the recording."""
    graph = recording.graph
    for node in recording.operations:
        criterion: Any = node.target
        if node.op == "call_module":
            criterion = module.get_submodule(str(node.target))
        elif node.op != "call_function":
            continue
        total = read_mean(criterion, node.args, node.kwargs, "sum")
        mean = total or read_mean(criterion, node.args, node.kwargs)
        if mean is None or not isinstance(mean.target, fx.Node):
            continue
        is_weighted = mean.known.settings.get("weight") is not None
        # What the module divides a sum by is not known.
        needs_all = is_weighted or total is not None
        nodes = None if needs_all else _made_of_arguments(mean.target, graph, module)
        name = f"loss {len(recording.losses)}"
        recording.losses.append(OwnLoss(name, node.meta["place"], mean, nodes))
        if nodes is None:
            continue
        with graph.inserting_before(next(iter(graph.nodes))):
            divisor = graph.create_node("placeholder", name)
        with graph.inserting_before(node):
            if node.op == "call_module":
                criterion = graph.create_node("get_attr", str(node.target))
            args = (divisor, criterion, *node.args)
            part = graph.create_node("call_function", PartOfLoss(), args, node.kwargs)
        part.meta.update(node.meta)
        node.replace_all_uses_with(part)
        graph.erase_node(node)


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


def _made_of_arguments(
    target: fx.Node, graph: fx.Graph, module: nn.Module
) -> Sequence[fx.Node] | None:
    """Return the nodes that make a target of arguments, in order; None if they need other values.

    A device is not needed: targets are counted where the arguments are. Targets that are made of
    sizes alone, such as the numbers of the samples, relate samples to each other.
    """
    needed, with_values = {target}, {target}
    for node in reversed(graph.nodes):
        if node not in needed or node.op == "placeholder" or _is_device(node):
            continue
        if node.op not in ("call_function", "call_method"):
            return None
        needed.update(node.all_input_nodes)
        if node in with_values:
            with_values.update(_inputs_by_value(node))
    if all(node.op != "placeholder" for node in with_values):
        return None
    origins: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "output":
            break
        aliased = aliased_inputs(node, module)
        origins[node] = {node}.union(*(origins[used] for used in aliased))
        if any(origins[changed] & needed for changed in changed_inputs(node, module)):
            return None
    return [node for node in graph.nodes if node in needed]


def _inputs_by_value(node: fx.Node) -> list[fx.Node]:
    """Return the inputs whose elements matter, and not only their shape, dtype or device."""
    name = str(getattr(node.target, "__name__", node.target))
    if name == "getattr":
        name = str(node.args[1])
    if name in _FORMS or name.startswith("new_") or name.endswith("_like"):
        return []
    if name in ("to", "type_as"):
        return [each for each in node.args[:1] if isinstance(each, fx.Node)]
    return node.all_input_nodes


def _is_device(node: fx.Node) -> bool:
    return node.target is getattr and node.args[1:2] == ("device",)
