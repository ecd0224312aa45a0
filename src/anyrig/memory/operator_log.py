"""The operators that ran while memory was recorded, and the roles of tensors."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch

from .block import Origin
from .kinds import Kind


@dataclass(frozen=True)
class Role:
    """The purpose of a tensor's memory, as observed after an operator had run."""

    operator: int  # the number of the last operator that had run
    device: torch.device
    address: int
    kind: Kind | None  # None: a tensor whose purpose is unknown
    name: str | None = None
    module: str | None = None


@dataclass
class OperatorLog:
    """The operators of a recording, numbered from 1, and the roles of tensors.

    Attributes:
        count: the number of operators so far.
        origins: the origin of each operator, by number.
        roles: the roles in the order of observation.
        backward_starts: the number of the first operator of each backward pass.
        backward_ends: the number of the first operator after each backward pass.
        step_ends: the number of the last operator of each optimizer step.
        graph_memory: the devices and addresses of the tensors that kept a graph for a backward pass
            when the recording began.
        refused: the name of the last operator that ran out of memory, such as
            ``"aten::_to_copy"``.
    """

    count: int = 0
    origins: dict[int, Origin] = field(default_factory=dict)
    roles: list[Role] = field(default_factory=list)
    backward_starts: list[int] = field(default_factory=list)
    backward_ends: list[int] = field(default_factory=list)
    step_ends: list[int] = field(default_factory=list)
    graph_memory: frozenset[tuple[torch.device, int]] = frozenset()
    refused: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def begin_operator(self) -> int:
        """Return the number of the operator that is about to run."""
        with self._lock:
            self.count += 1
            return self.count

    def clear(self) -> None:
        """Clear the origins, roles, backward passes and steps; continue the numbering."""
        for entries in (
            self.origins,
            self.roles,
            self.backward_starts,
            self.backward_ends,
            self.step_ends,
        ):
            entries.clear()
