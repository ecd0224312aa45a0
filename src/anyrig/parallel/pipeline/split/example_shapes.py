"""Branches and loops that depend on shapes of arguments, decided by the example's shapes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from ....errors import SpreadError
from .operations import fill
from .refusal import Place


class NumberCheck:
    """Raises if a number, or the truth of a comparison, is not that of the example.

    Args:
        expected: the number.
        place: the code that depends on it.
    """

    def __init__(self, expected: int, place: Place) -> None:
        self._expected, self._place = expected, place
        self.__name__ = self.__qualname__ = "check_number"

    def __call__(self, value: int) -> None:
        """Raise `SpreadError` if the number differs."""
        if type(self._expected)(value) != self._expected:
            raise SpreadError(
                "the module was divided with an example of different shapes, on which its code "
                f"depends: {self._expected!r} in the example, but {value!r} in this call, in "
                f"{self._place}. Give an example with the shapes of these calls; if code depends "
                'on the number of samples, also use micro_batches=1 or how="split"'
            )


def number_of(node: fx.Node, shapes: Mapping[str, Sequence[int]]) -> object | None:
    """Return what a node computes from the shapes of the example's arguments; None if unknown."""
    if "number" not in node.meta:
        node.meta["number"] = _compute(node, shapes)
    found: object | None = node.meta["number"]
    return found


def _compute(node: fx.Node, shapes: Mapping[str, Sequence[int]]) -> object | None:
    name = str(getattr(node.target, "__name__", node.target))
    first = node.args[0] if node.args else None
    shape = None
    if isinstance(first, fx.Node) and first.op == "placeholder":
        shape = shapes.get(str(first.target))
    if shape is not None and not node.kwargs:
        if node.target is getattr and node.args[1] in ("shape", "ndim"):
            return torch.Size(shape) if node.args[1] == "shape" else len(shape)
        if node.op == "call_method" and name in ("dim", "ndimension") and len(node.args) == 1:
            return len(shape)
        if node.op == "call_method" and name == "size":
            sizes = torch.Size(shape)
            return sizes if len(node.args) == 1 else sizes[node.args[1]]  # type: ignore[index]
    if node.op != "call_function" or getattr(operator, name, None) is not node.target:
        return None
    values = {used: number_of(used, shapes) for used in node.all_input_nodes}
    if any(value is None for value in values.values()):
        return None
    result: object = getattr(operator, name)(*fill(node.args, values.__getitem__))
    return result
