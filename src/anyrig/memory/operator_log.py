"""What ran while memory was recorded, and which tensors had which roles."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .block import Origin
from .kinds import Kind


@dataclass(frozen=True)
class Role:
    """That a tensor's memory serves a purpose, seen after an operator had run."""

    operator: int  # the number of the last operator before
    device: torch.device
    address: int
    kind: Kind | None  # None: a tensor of no known purpose
    name: str | None = None
    module: str | None = None


@dataclass
class OperatorLog:
    """The operators of a recording, by number, and the roles of tensors.

    Attributes:
        origins: of each operator that may have allocated memory.
        roles: in the order in which they were seen.
        backward_starts: numbers of the first operators of backward passes.
        backward_ends: numbers of the first operators after each of them.
        step_ends: numbers of the last operators of optimizer steps.
        refused: the name of the last operator that ran out of memory, as ``"aten::_to_copy"``.
        graph_devices: where graphs for a backward pass existed when the recording began.
    """

    count: int = 0
    origins: dict[int, Origin] = field(default_factory=dict)
    roles: list[Role] = field(default_factory=list)
    backward_starts: list[int] = field(default_factory=list)
    backward_ends: list[int] = field(default_factory=list)
    step_ends: list[int] = field(default_factory=list)
    graph_devices: frozenset[torch.device] = frozenset()
    refused: str | None = None

    def begin_operator(self) -> int:
        """Return the number of the operator that is about to run."""
        self.count += 1
        return self.count

    def clear(self) -> None:
        """Forget all but how many operators have run."""
        for entries in (
            self.origins,
            self.roles,
            self.backward_starts,
            self.backward_ends,
            self.step_ends,
        ):
            entries.clear()
