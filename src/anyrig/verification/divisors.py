"""By what a loss divides its sum, read from its graph.

::

    (losses * mask).sum() / mask.sum() + penalty       divisors_of: (mask.sum(),)
           SumBackward0 ◀── DivBackward0 ◀── AddBackward0

A mean over what a mask selects, written by hand, is a quotient; its divisor is how many it counts.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

_MOST = 8
# Operations that pass a gradient on to each of their terms, unchanged or with its sign reversed.
_PASS = ("Add", "Sub", "Rsub", "Neg", "ToCopy", "View", "Reshape", "Squeeze", "Unsqueeze", "Expand")


def divisors_of(loss: Tensor) -> tuple[float, ...]:
    """Return the divisors of the terms that a loss adds up, in the order of its graph.

    A number that multiplies or divides a term changes its divisor; without any, it is 1.
    """
    found: list[float] = []
    open_nodes: list[tuple[Any, float]] = [(loss.grad_fn, 1.0)]
    while open_nodes and len(found) < _MOST:
        node, divisor = open_nodes.pop()
        if node is None:
            continue
        kind = node.name().partition("Backward")[0]
        counted = _count_of_mean(node, kind)
        if counted is not None:
            found.append(divisor * counted)
        elif kind in _PASS:
            open_nodes += ((one, divisor) for one, _ in reversed(node.next_functions))
        elif (scaled := _scaled(node, kind)) is not None:
            open_nodes.append((scaled[0], divisor * scaled[1]))
        else:
            found.append(divisor)
    return tuple(found)


def _count_of_mean(node: Any, kind: str) -> float | None:
    """Return by what a mean divides; None for another operation."""
    if kind == "Mean":
        return _number(node, "self_sym_numel")
    if _number(node, "reduction") != 1:  # 1 is "mean"
        return None
    if kind.startswith("NllLoss"):
        return _number(node, "total_weight")
    values = _saved(node, "self")
    return float(values.numel()) if isinstance(values, Tensor) else None


def _scaled(node: Any, kind: str) -> tuple[Any, float] | None:
    """Return the node of what a number divides or multiplies, and by what that divides it.

    None for another operation.
    """
    if kind not in ("Div", "Mul"):
        return None
    first, second = [*(one for one, _ in node.next_functions), None][:2]  # a scalar has no node
    if second is None and (number := _number(node, "other")):
        return first, number if kind == "Div" else 1 / number
    if first is None and kind == "Mul" and (number := _number(node, "self")):
        return second, 1 / number
    return None


def _number(node: Any, name: str) -> float | None:
    value = _saved(node, name)
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) else None


def _saved(node: Any, name: str) -> Any:
    """Return what a node has saved under a name; None for nothing, and if it has changed since."""
    try:
        return getattr(node, f"_saved_{name}", None)  # a documented prefix
    except RuntimeError:
        return None
