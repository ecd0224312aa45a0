"""Blocks of memory: from when to when each is allocated, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass

from .kinds import Kind
from .source_line import SourceLine


@dataclass(frozen=True)
class Origin:
    """What the program was doing when an operator ran.

    Attributes:
        phase: ``"forward"``, ``"backward"``, ``"optimizer"`` or ``"outside"``; None if unknown.
        module: its qualified name, as in a state dict; ``""`` is the outermost module.
        line: of a backward pass, the line whose gradient is computed.
        learns: whether autograd records the operator.
        call: how many calls of outermost modules had begun.
        trains: whether the outermost module that runs is in training mode; None outside of all.
    """

    phase: str | None
    module: str | None
    line: SourceLine | None
    learns: bool
    call: int = 0
    trains: bool | None = None


@dataclass(eq=False)
class Block:
    """One allocation of an allocator, or one storage on the CPU.

    Positions count the events of the recording.

    Attributes:
        bytes: what the allocator counts: rounded up, and with a rest that it does not split off.
        operator: the number of the operator that asked for it; None if it is older than the
            recording.
        born: the position of its allocation; -1 if it is older.
        died: the position at which it was freed; None while it is allocated.
        data_address: where tensors find their bytes, if not at `address`.
        origin: what allocated it; None if unknown.
        of_tensor: whether a tensor had it. If not, a library asked for it.
        kind: what it is for; None until a role has been found.
        name: of the parameter, buffer or tensor; None if unknown.
    """

    address: int
    bytes: int
    operator: int | None
    born: int
    died: int | None = None
    origin: Origin | None = None
    data_address: int | None = None
    of_tensor: bool = False
    kind: Kind | None = None
    name: str | None = None
    module: str | None = None

    def adopt(self, same: Block) -> None:
        """Take over what is known of this block from an earlier recording."""
        self.origin, self.of_tensor = same.origin, same.of_tensor
        self.kind, self.name, self.module = same.kind, same.name, same.module

    def is_alive_at(self, position: int) -> bool:
        """Say whether it is allocated after the event at `position`."""
        return self.born <= position and (self.died is None or self.died > position)
