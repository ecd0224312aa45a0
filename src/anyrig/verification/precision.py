"""The floating-point types with which a loss was computed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

_MOST_NODES = 200_000


def dtypes_of(loss: Tensor) -> set[str]:
    """Return the floating-point types of the results in the graph of a loss.

    Includes the types that autocast and explicit conversions produce, since the bound for
    differences by rounding depends on the coarsest type.
    """
    found = {_name(loss.dtype)}
    seen: set[Any] = set()
    open_nodes = [loss.grad_fn]
    while open_nodes and len(seen) < _MOST_NODES:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        # Private: no public attribute of a node has the types of its results.
        # tests/verification/test_pieces.py would notice its change.
        for facts in getattr(node, "_input_metadata", ()):
            if facts is not None and facts.dtype.is_floating_point:
                found.add(_name(facts.dtype))
        open_nodes += [next_node for next_node, _ in node.next_functions]
    return found


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
