"""Where a recorded module is cut into blocks.

::

    values that cross   1     2     2     1     2     1
    operations      ──┬──norm──attn──add──┬──norm──mlp──add──┬──
                      cut                 cut                cut

There is no cut inside a small submodule, nor where more values cross than at a place shortly before
and a place shortly after, such as inside a residual branch. Operations with few parameters or none,
such as a norm, join a neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from torch import fx

# A submodule with at most this part of the module is not divided.
SMALL_PART = 1 / 16
# Between two places with fewer crossing values that are at most this part apart, nothing is cut.
_NEAR_PART = 1 / 4
# A block uses at least this part of the parameters.
_LEAST_PART = 1 / 512
# These operations return sizes and devices, which cost nothing to send.
_SMALL_VALUES = {"size", "dim", "numel", "shape", "device", "dtype", "ndim", "ndimension"}


def choose_cuts(
    nodes: Sequence[fx.Node],
    sizes: Sequence[int],
    spans: Sequence[tuple[int, int]],
) -> list[int]:
    """Return where to cut: ``cut`` is the index of the first node after a cut.

    Args:
        nodes: the operations in order.
        sizes: how many elements of parameters each node uses.
        spans: (first, last) of nodes that must stay together.
    """
    weights = _weigh(sizes)
    before = list(accumulate(weights, initial=0.0))
    counts = count_crossing(nodes)
    allowed = set(range(1, len(nodes)))
    for first, last in spans:
        allowed.difference_update(range(first + 1, last + 1))
    allowed -= _inside_small_calls(nodes, before)
    allowed -= _inside_bumps(sorted({0, len(nodes)} | allowed), counts, before)
    return _join_empty(sorted(allowed), sizes, counts)


def count_crossing(nodes: Sequence[fx.Node]) -> list[int]:
    """Return how many values cross each cut; the module's result does not count."""
    position = {node: i for i, node in enumerate(nodes)}
    changes = [0] * (len(nodes) + 2)
    small: set[fx.Node] = set()
    for i, node in enumerate(nodes):
        if _is_small(node, small):
            small.add(node)
            continue
        last = max((position.get(user, -1) for user in node.users), default=-1)
        if last > i:
            changes[i + 1] += 1
            changes[last + 1] -= 1
    return list(accumulate(changes[: len(nodes) + 1]))


def _is_small(node: fx.Node, small: set[fx.Node]) -> bool:
    name = str(getattr(node.target, "__name__", node.target))
    if name in _SMALL_VALUES or (name == "getattr" and node.args[1] in _SMALL_VALUES):
        return True
    inputs = node.all_input_nodes
    return bool(inputs) and node.op == "call_function" and all(each in small for each in inputs)


def _weigh(sizes: Sequence[int]) -> list[float]:
    """Return each node's part of the module: half by parameters, half by number."""
    total, count = sum(sizes), len(sizes)
    return [(size / total if total else 1 / count) / 2 + 0.5 / count for size in sizes]


def _inside_small_calls(nodes: Sequence[fx.Node], before: Sequence[float]) -> set[int]:
    first: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    for i, node in enumerate(nodes):
        for call in node.meta["calls"]:
            first.setdefault(call, i)
            last[call] = i
    inside: set[int] = set()
    for call, start in first.items():
        if before[last[call] + 1] - before[start] <= SMALL_PART:
            inside.update(range(start + 1, last[call] + 1))
    return inside


def _inside_bumps(cuts: Sequence[int], counts: Sequence[int], before: Sequence[float]) -> set[int]:
    """Return the cuts that more values cross than two others nearby, one on each side."""

    def nearest_fewer(order: Sequence[int]) -> dict[int, int]:
        found, stack = {}, list[int]()
        for cut in order:
            while stack and counts[stack[-1]] >= counts[cut]:
                stack.pop()
            if stack:
                found[cut] = stack[-1]
            stack.append(cut)
        return found

    left, right = nearest_fewer(cuts), nearest_fewer(cuts[::-1])
    both = left.keys() & right.keys()
    return {cut for cut in both if before[right[cut]] - before[left[cut]] <= _NEAR_PART}


def _join_empty(cuts: Sequence[int], sizes: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Remove cuts until each block uses enough parameters."""
    sums = list(accumulate(sizes, initial=0))
    least = max(1, int(sums[-1] * _LEAST_PART))
    kept: list[int] = []
    for cut in cuts:
        if sums[cut] - sums[kept[-1] if kept else 0] >= least:
            kept.append(cut)
        elif kept and counts[cut] <= counts[kept[-1]]:
            kept[-1] = cut
    if kept and sums[-1] - sums[kept[-1]] < least:
        kept.pop()
    return kept
