"""Blocks from recorded operations and cuts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx, nn

from ....losses.means_of_parts import AddUp
from ..chain import Block, Chain, Values
from ..known_layers import list_layers, require_known_layers
from .one_sample import ONE_SAMPLE, SampleCount
from .operations import Operations, Variant, fill, read_state
from .own_losses import divisors_of
from .part_of_loss import Divisor
from .variants import Side, read_mode

Bind = Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]


class _Pieces:
    """The operations of one side by block, and the values that each block reads and writes."""

    def __init__(self, side: Side, cuts: Sequence[int]) -> None:
        self.side = side
        self.nodes: list[list[fx.Node]] = [[] for _ in range(len(cuts) + 1)]
        block_of = {}
        for node, home in zip(side.nodes, side.homes, strict=True):
            block = block_of[node] = bisect_right(cuts, home)
            self.nodes[block].append(node)
        self.reads: list[dict[str, None]] = [{} for _ in self.nodes]
        self.writes: list[dict[str, fx.Node]] = [{} for _ in self.nodes]
        for node, block in block_of.items():
            for used in node.all_input_nodes:
                if used.op != "get_attr" and block_of.get(used, -1) != block:
                    self.reads[block][side.names[used]] = None
            if any(block_of.get(user, -1) != block for user in node.users):
                self.writes[block][side.names[node]] = node
        result = side.recording.output.all_input_nodes
        self.result_reads = [side.names[node] for node in result if node.op != "get_attr"]


def assemble(
    module: nn.Module,
    bind: Bind,
    sides: Sequence[Side],
    cuts: Sequence[int],
    shown: float,
    count: SampleCount | None,
) -> Chain:
    """Return the chain of the blocks between cuts.

    Args:
        module: the whole module.
        bind: turns arguments into values.
        sides: the operations in one or two modes.
        cuts: indices of operations of the first side.
        shown: an undivided operation is reported if it has more than this part of the parameters.
        count: where samples are counted, if some sides are for calls with one sample.
    """
    pieces = [_Pieces(side, cuts) for side in sides]
    assumed = sorted({name for side in sides for name in side.recording.assumed})
    total = sum(p.numel() for p in module.parameters())

    def live_mode() -> bool | None:
        return read_mode(module, assumed)

    counted = () if count is None else (ONE_SAMPLE,)

    losses = [loss for side in sides for loss in side.recording.losses]
    of_whole_batch = dict.fromkeys(loss.name for loss in losses)

    def bind_with_count(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        values = {**bind(args, kwargs), **of_whole_batch}
        if count is not None:
            values[ONE_SAMPLE] = count.is_one(values)
        return values

    blocks = []
    for b, nodes in enumerate(pieces[0].nodes):
        reads = tuple(dict.fromkeys(name for each in pieces for name in each.reads[b]))
        writes = tuple(dict.fromkeys(name for each in pieces for name in each.writes[b]))
        variants = {
            (each.side.training, each.side.one_sample): Variant(
                module,
                each.side.recording.constants,
                each.nodes[b],
                reads,
                [each.writes[b].get(name) for name in writes],
                each.side.names,
            )
            for each in pieces
        }
        undivided = {
            why: None
            for name, why in sides[0].recording.undivided.items()
            if any(node.op == "call_module" and node.target == name for node in nodes)
            and sum(p.numel() for p in module.get_submodule(name).parameters()) > shown * total
        }
        operations = Operations(module, variants, live_mode, count is not None)
        reads += counted
        blocks.append(Block(_name_block(nodes), operations, reads, writes, "; ".join(undivided)))

    layers = list_layers(module)

    def require_same() -> None:
        require_known_layers(module, layers)
        for side in sides:
            side.recording.facts.require_same(module)

    by_case = {(side.training, side.one_sample): side for side in sides}

    def side_of(values: Values) -> Side:
        return by_case[live_mode(), values.get(ONE_SAMPLE)]

    def divide(values: Values, samples: Sequence[int], add_up: AddUp) -> list[dict[str, Divisor]]:
        return divisors_of(side_of(values).recording.losses, values, samples, add_up)

    def build(values: Values) -> Any:
        side = side_of(values)

        def value_of(node: fx.Node) -> Any:
            if node.op == "get_attr":
                return read_state(module, side.recording.constants, str(node.target))
            return values[side.names[node]]

        return fill(side.recording.output.args[0], value_of)

    result_reads = dict.fromkeys(name for each in pieces for name in each.result_reads)
    read_at_end = (*result_reads, *counted)
    return Chain(
        tuple(blocks),
        bind_with_count,
        build,
        read_at_end,
        require_same,
        divide,
        next((str(loss.place) for loss in losses if loss.nodes is None), ""),
    )


def _name_block(nodes: Sequence[fx.Node]) -> str:
    """Return the submodule that a block is in, or the first and last operation."""
    if not nodes:
        return "nothing"
    paths = [[name for name, _ in node.meta["calls"]] or [node.name] for node in nodes]
    for depth, name in reversed(list(enumerate(paths[0]))):
        if all(path[depth : depth + 1] == [name] for path in paths):
            return str(name)
    depth = next(
        (i for i, (a, b) in enumerate(zip(paths[0], paths[-1], strict=False)) if a != b), -1
    )
    return f"{paths[0][depth]} to {paths[-1][depth]}"
