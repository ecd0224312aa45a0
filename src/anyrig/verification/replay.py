"""`Replay`, what the run on one device takes over from the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from .initial_values import initial_values
from .merging import Batches, merge_batches
from .records import RankRecord


@dataclass(frozen=True)
class Replay:
    """What the run on one device gets in place of its own.

    Attributes:
        batches: the batches that its data loaders deliver.
        lengths: what ``len()`` of them returns; see `LoaderLengths`.
        initial: the values with which its models begin, by the names of the parameters.
    """

    batches: Batches
    lengths: Sequence[int]
    initial: Mapping[str, Tensor]

    @classmethod
    def of(cls, ranks: Sequence[RankRecord]) -> Replay:
        """Return what one device takes over from these ranks.

        Raises:
            VerificationError: the batches of the ranks cannot be put together.
        """
        first = min(ranks, key=lambda record: record.rank)
        return cls(merge_batches(ranks), first.loader_lengths, initial_values(ranks))
