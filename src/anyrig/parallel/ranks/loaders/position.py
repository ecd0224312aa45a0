"""Where the program is in a distributed loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ....errors import CheckpointError


@dataclass
class Iteration:
    """One iteration over a loader, and how far its user has come."""

    epoch: int
    received: int  # global batches of the epoch that the user has received or skipped
    is_over: bool = False  # whether the user has asked for a batch after the last one

    def count(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield `batches`, and count them."""
        for batch in batches:
            self.received += 1
            yield batch
        self.is_over = True


@dataclass(frozen=True)
class Position:
    """What a loader needs to continue with the next global batch, on any number of ranks."""

    epoch: int  # of the next batch
    received: int  # how many global batches of the epoch were received before
    seed: int  # of the order
    batch_size: int | None  # samples in a global batch; None if the loader does not say
    batches: int | None  # global batches in an epoch; None if the loader does not say
    divided_ranks: int | None  # how many ranks there are, if each draws its own batches
    logical_shards: int | None = None  # the shards of each global batch

    def as_state(self) -> dict[str, int | None]:
        """Return the position as plain values."""
        return asdict(self)

    def require_same_batches(self, own: Position) -> None:
        """Raise CheckpointError if the loader `own` would yield different global batches."""
        if self.divided_ranks != own.divided_ranks:
            raise CheckpointError(
                f"the position was saved by {_describe_ranks(self)}, and is loaded by "
                f"{_describe_ranks(own)}; if ranks have batches of their own (divided=True), their "
                "number must stay the same"
            )
        for what, saved, now in (
            ("samples in a global batch", self.batch_size, own.batch_size),
            ("global batches in an epoch", self.batches, own.batches),
        ):
            if saved != now:
                raise CheckpointError(
                    f"the loader had {saved} {what} when its position was saved, and has {now} "
                    "now, so the position names different samples. Give it the same data and "
                    "batch_size (of all ranks together), or leave loader= out and begin an epoch"
                )


def position_from_state(state: Mapping[str, Any]) -> Position:
    """Return the position that `Position.as_state` has written, or raise CheckpointError."""
    try:
        return Position(**state)
    except TypeError:
        raise CheckpointError(
            "the position was not saved by a loader of anyrig.distribute(): it has the entries "
            f"{', '.join(map(str, state)) or '(none)'}. Leave loader= out and begin an epoch"
        ) from None


def _describe_ranks(position: Position) -> str:
    ranks = position.divided_ranks
    return "a loader of global batches" if ranks is None else f"{ranks} ranks with own batches"
