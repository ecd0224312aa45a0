"""Losses that a module computes itself are found in its recording, and become those of parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from ....losses.target_means import read_mean
from .own_losses import OwnLoss, is_device
from .part_of_loss import PartOfLoss
from .recording import Recording
from .together import aliased_inputs, changed_inputs

# What reads the form of a tensor, and none of its elements.
_FORMS = ("shape", "ndim", "dtype", "device", "size", "dim", "numel", "stride")


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


def _made_of_arguments(
    target: fx.Node, graph: fx.Graph, module: nn.Module
) -> Sequence[fx.Node] | None:
    """Return the nodes that make a target of arguments, in order; None if they need other values.

    A device is not needed: targets are counted where the arguments are. Targets that are made of
    sizes alone, such as the numbers of the samples, relate samples to each other.
    """
    needed, with_values = {target}, {target}
    for node in reversed(graph.nodes):
        if node not in needed or node.op == "placeholder" or is_device(node):
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
