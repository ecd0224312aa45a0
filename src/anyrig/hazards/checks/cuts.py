"""Which parameters each `.detach()` and each `.data` cuts off from what follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..check import Check
from ..hazard import Place
from ..tensor_numbers import TensorNumbers

# How often the graph is searched for each line, and how many nodes each search visits.
_MOST_SEARCHES, _MOST_NODES = 2, 20_000


@dataclass
class _Cut:
    how: str
    searches: int = 0
    leaves: set[int] = field(default_factory=set)  # their numbers


class Cuts(Check):
    """The leaves of the graphs of detached tensors, by the line that detached them."""

    def __init__(self, numbers: TensorNumbers) -> None:
        self._numbers = numbers
        self._cuts: dict[Place, _Cut] = {}

    def cut(self, tensor: Tensor, how: str, place: Place) -> None:
        """Remember the leaves on which `tensor` depends."""
        if place.file is None:
            return
        cut = self._cuts.setdefault(place, _Cut(how))
        if cut.searches < _MOST_SEARCHES:
            cut.searches += 1
            cut.leaves |= {self._numbers.number(leaf) for leaf in leaves_of(tensor.grad_fn)}

    def find(self, parameter: Tensor) -> tuple[Place, str] | None:
        """Return the first line that cut off something that depends on a parameter, and how."""
        number = self._numbers.number(parameter)
        for place, cut in self._cuts.items():
            if number in cut.leaves:
                return place, cut.how
        return None


def leaves_of(node: Any) -> Iterator[Tensor]:
    """Yield the leaves at the ends of the graph below `node`."""
    seen, waiting = {node}, [node] if node is not None else []
    while waiting and len(seen) < _MOST_NODES:
        for following, _ in waiting.pop().next_functions:
            if following is None or following in seen:
                continue
            seen.add(following)
            leaf = getattr(following, "variable", None)
            if leaf is None:
                waiting.append(following)
            else:
                yield leaf
