"""The operations of a module in training and in evaluation mode, side by side.

::

    training     embed  layer 0  dropout  layer 1  head
    evaluation   embed  layer 0           layer 1  head
    block          0       0        0        1      1

An operation that both modes have gets one name and one block. An operation that only the second
mode has joins the block of the operation before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from torch import fx, nn

from .....errors import SpreadError
from .recording import Recording


@dataclass(frozen=True)
class Side:
    """The operations of a module in one mode.

    Attributes:
        training: the mode; None if the mode does not matter.
        one_sample: whether calls have one sample; None if that does not matter.
        recording: the recording of the module in this mode.
        nodes: the operations in order.
        homes: for each operation, the index of the first side's operation whose block it joins.
        names: the names of the values, the same on both sides for operations that both have.
    """

    training: bool | None
    one_sample: bool | None
    recording: Recording
    nodes: Sequence[fx.Node]
    homes: Sequence[int]
    names: Mapping[fx.Node, str]


def align(
    recordings: Sequence[Recording], single: Sequence[Recording], training: bool
) -> list[Side]:
    """Return the recordings side by side.

    Args:
        recordings: one, or those of the current and of the other mode.
        single: those for calls with one sample, if they differ.
        training: the current mode.
    """
    first = recordings[0]
    modes = [training, not training] if len(recordings) > 1 else [None]
    counts = [(recordings, False), (single, True)] if single else [(recordings, None)]
    cases = [
        (mode, one, recording)
        for group, one in counts
        for mode, recording in zip(modes, group, strict=True)
    ]
    nodes, names = first.operations, _own_names(first.graph, "")
    sides = [Side(*cases[0][:2], first, nodes, range(len(nodes)), names)]
    for number, (mode, one, recording) in enumerate(cases[1:]):
        others = recording.operations
        found = _match([_key(node) for node in nodes], [_key(node) for node in others])
        named = _own_names(recording.graph, f"other {number}: ")
        homes, home = [], 0
        for node, match in zip(others, found, strict=True):
            if match is not None:
                home, named[node] = match, names[nodes[match]]
            homes.append(home)
        sides.append(Side(mode, one, recording, others, homes, named))
    return sides


def read_mode(module: nn.Module, names: Sequence[str]) -> bool | None:
    """Return the current mode of these submodules; None if there are none.

    Raises:
        SpreadError: they are in different modes.
    """
    modes = {module.get_submodule(name).training: name for name in names}
    if len(modes) > 1:
        kind = type(module).__name__
        raise SpreadError(
            f"{modes[True] or kind!r} is in training mode and {modes[False] or kind!r} in "
            "evaluation mode, but both choose by their mode which code runs. Put both in one mode"
        )
    return next(iter(modes)) if modes else None


def _match(first: Sequence[Any], second: Sequence[Any]) -> list[int | None]:
    """Return for each item of `second` its place in `first`, in increasing order."""
    found: list[int | None] = [None] * len(second)
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    for start, other, size in matcher.get_matching_blocks():
        found[other : other + size] = range(start, start + size)
    return found


def _key(node: fx.Node) -> tuple[Any, ...]:
    return node.op, str(getattr(node.target, "__name__", node.target)), node.meta["calls"]


def _own_names(graph: fx.Graph, prefix: str) -> dict[fx.Node, str]:
    return {
        node: str(node.target) if node.op == "placeholder" else f"{prefix}{node.name}"
        for node in graph.nodes
        if node.op not in ("get_attr", "output")
    }
