"""The loader of one rank: its part of every global batch, and as many batches as any other rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...shares.shares import Shares
from .sampled import SampledDivision
from .streamed import StreamedDivision

Division = SampledDivision | StreamedDivision


class DistributedLoader:
    """What `distribute` returns. Other attributes are those of the loader that it was given."""

    __slots__ = ("__weakref__", "_division", "_loader", "_next")

    _loader: Iterable[Any]
    _division: Division
    _next: tuple[int, int]

    def __init__(self, loader: Iterable[Any], division: Division) -> None:
        for name, value in (("_loader", loader), ("_division", division), ("_next", (0, 0))):
            object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Any]:
        epoch, skip_batches = self._next
        self.set_epoch(epoch + 1)
        return self._division.batches(epoch, skip_batches)

    def set_epoch(self, epoch: int, skip_batches: int = 0) -> None:
        """Let the next iteration be `epoch`, from global batch `skip_batches` on.

        Without a call, iterations count the epochs from zero.
        """
        object.__setattr__(self, "_next", (epoch, skip_batches))

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._next[0]

    @property
    def shares(self) -> Shares | None:
        """The share of each rank in a global batch, and why; None with ``divided=True``."""
        return self._division.turns.shares

    @property
    def samples_of_batches(self) -> list[tuple[int, ...]] | None:
        """How many samples each rank had in each global batch of the last iteration; None with
        ``divided=True``.
        """
        turns = self._division.turns
        return None if turns.divided else turns.samples_of_batches

    def __len__(self) -> int:
        """Return the number of batches.

        Raises:
            TypeError: the loader of some rank has no length.
        """
        turns = self._division.turns
        if not turns.divided:
            return len(self._loader)  # type: ignore[arg-type]
        if turns.longest is None:
            raise TypeError("the loader of some rank has no length")
        return turns.longest

    def __getattr__(self, name: str) -> Any:
        if name in DistributedLoader.__slots__:  # not set yet, while a copy is being made
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __repr__(self) -> str:
        return f"distribute({self._loader!r})"
