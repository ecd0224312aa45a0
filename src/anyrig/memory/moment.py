"""What one device's memory held at one moment: by kind, module, name and line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..observe.source_line import SourceLine
from .kinds import Kind

Key = TypeVar("Key")


@dataclass(frozen=True)
class Holding:
    """One allocated block of memory, and what it is for.

    Attributes:
        bytes: the size that the allocator counts for the block, including rounding.
        name: the name of the parameter, buffer or variable; None if unknown.
        module: the qualified name of the module that allocated or owns the block; ``""`` for the
            model, None for no module.
        line: the line of the program that allocated the block; in a backward pass, the line of the
            forward pass whose gradient is computed. None if allocated before tracking began.
        phase: ``"forward"``, ``"backward"``, ``"optimizer"`` or ``"outside"`` of these; None if
            allocated before tracking began.
    """

    bytes: int
    kind: Kind
    name: str | None
    module: str | None
    line: SourceLine | None
    phase: str | None


@dataclass(frozen=True)
class Moment:
    """What one device's memory held at one moment.

    Attributes:
        allocated_bytes: the sum of the holdings; on CUDA devices, the value of
            `torch.cuda.memory_allocated`.
        reserved_bytes: the value of `torch.cuda.memory_reserved`; None on the CPU.
        seconds: the time since the epoch; None if unknown.
        phase: the phase of the operator that ran, as in `Holding`.
        module: the module of the operator that ran.
        line: the line of the operator that ran.
        holdings: the allocated blocks, largest first.
    """

    allocated_bytes: int
    reserved_bytes: int | None
    seconds: float | None
    phase: str | None
    module: str | None
    line: SourceLine | None
    holdings: tuple[Holding, ...]

    def by_kind(self) -> dict[Kind, int]:
        """Return the bytes of each kind, largest first. On CUDA, the sum is `reserved_bytes`."""
        counts = self._sum(lambda holding: holding.kind)
        if self.reserved_bytes is not None:
            counts[Kind.CACHED] = self.reserved_bytes - self.allocated_bytes
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    def by_module(self, kind: Kind | None = None) -> dict[str | None, int]:
        """Return the bytes of each module, largest first; only of `kind` if given."""
        return self._sum(lambda holding: holding.module, kind)

    def by_name(self, kind: Kind | None = None) -> dict[str | None, int]:
        """Return the bytes of each parameter, buffer or variable, largest first.

        Only of `kind` if given.
        """
        return self._sum(lambda holding: holding.name, kind)

    def by_line(self, kind: Kind | None = None) -> dict[SourceLine | None, int]:
        """Return the bytes that each line of the program allocated, largest first.

        Only of `kind` if given.
        """
        return self._sum(lambda holding: holding.line, kind)

    def _sum(self, key: Callable[[Holding], Key], kind: Kind | None = None) -> dict[Key, int]:
        counts: Counter[Key] = Counter()
        for holding in self.holdings:
            if kind is None or holding.kind is kind:
                counts[key(holding)] += holding.bytes
        return dict(counts.most_common())
