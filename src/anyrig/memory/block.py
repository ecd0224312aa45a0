"""Blocks of memory: when each was allocated and freed, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass

from ..observe.source_line import SourceLine
from .kinds import Kind


@dataclass(frozen=True)
class Origin:
    """What the program was doing when an operator ran.

    Attributes:
        phase: ``"forward"``, ``"backward"``, ``"optimizer"`` or ``"outside"``; None if unknown.
        module: the qualified name of the innermost running module, as in a state dict; ``""`` for
            the outermost module, None outside every module.
        line: the line of the program; in a backward pass, the line whose gradient is computed.
        is_recorded: whether autograd records the operator.
        call: the number of calls of outermost modules that had begun.
        is_training: whether the running outermost module is in training mode; None outside every
            module.
        node: the sequence number of the operator's node in the graph of autograd; None if the
            operator has no node.
    """

    phase: str | None
    module: str | None
    line: SourceLine | None
    is_recorded: bool
    call: int = 0
    is_training: bool | None = None
    node: int | None = None


@dataclass(eq=False)
class Block:
    """One allocation of an allocator, or one storage on the CPU.

    A position is the index of an event in the recording.

    Attributes:
        bytes: the size that the allocator counts: rounded up, plus any remainder that is too small
            to split off.
        operator: the number of the operator that allocated the block; None if the block is older
            than the recording.
        born: the position of the allocation; -1 if the block is older than the recording.
        died: the position of the free; None while the block is allocated.
        data_address: the address in the tensors' data pointers, if it is not `address`.
        origin: what the program was doing at the allocation; None if unknown.
        has_tensor: whether the block belonged to a tensor. If not, a library allocated it.
        kind: what the block is for; None until a role is found.
        name: the name of the parameter, buffer or variable; None if unknown.
    """

    address: int
    bytes: int
    operator: int | None
    born: int
    died: int | None = None
    origin: Origin | None = None
    data_address: int | None = None
    has_tensor: bool = False
    kind: Kind | None = None
    name: str | None = None
    module: str | None = None

    def adopt(self, earlier: Block) -> None:
        """Copy the origin and the role of the same block in an earlier recording."""
        self.origin, self.has_tensor = earlier.origin, earlier.has_tensor
        self.kind, self.name, self.module = earlier.kind, earlier.name, earlier.module

    def is_alive_at(self, position: int) -> bool:
        """Return whether the block is allocated after the event at `position`."""
        return self.born <= position and (self.died is None or self.died > position)
