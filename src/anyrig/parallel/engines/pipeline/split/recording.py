"""The operations of a module's forward, as a recorder leaves them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import fx

from .own_losses import OwnLoss
from .recorded_facts import RecordedFacts


@dataclass
class Recording:
    """The operations of a module's forward.

    Attributes:
        graph: one node per operation. ``meta["calls"]`` has the submodule calls around the node,
            outermost first, as (name, number of the call); ``meta["place"]`` the line of code.
        undivided: why a submodule is a single operation, by name.
        assumed: the submodules on whose mode the operations depend.
        constants: tensors that no module holds, by the target of their ``get_attr``.
        facts: attributes and children of the modules that tracing read.
        losses: means over targets that the module computes; see `divide_losses`.
    """

    graph: fx.Graph
    facts: RecordedFacts
    undivided: dict[str, str] = field(default_factory=dict)
    assumed: set[str] = field(default_factory=set)
    constants: dict[str, Any] = field(default_factory=dict)
    losses: list[OwnLoss] = field(default_factory=list)

    @property
    def operations(self) -> list[fx.Node]:
        """The nodes that compute."""
        return [n for n in self.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]

    @property
    def output(self) -> fx.Node:
        """The node that has the module's result as its argument."""
        last: fx.Node = next(iter(reversed(self.graph.nodes)))
        return last
