"""What a checkpoint keeps of a training run with logical shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeGuard

from ....errors import CheckpointError

# What must be equal for training to continue with the same bits, in words for messages. `seed` and
# `step` are restored.
_NEEDED = {
    "logical_shards": "logical shards",
    "device": "device",
    "torch": "PyTorch version",
    "precision": "precision",
}


@dataclass
class ExactState:
    """The state of a model with logical shards, the same on every rank.

    Attributes:
        logical_shards: the number in a global batch.
        device: what the kernels depend on.
        torch: the version of PyTorch.
        precision: the name of autocast's dtype.
        seed: the seed of the random numbers within the model.
        step: how many steps these numbers were drawn for.
    """

    logical_shards: int
    device: str
    torch: str
    precision: str
    seed: int
    step: int = 0

    def as_state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return asdict(self)

    def require_same(self, saved: Mapping[str, Any]) -> None:
        """Raise CheckpointError if training would not continue from `saved` with the same bits."""
        for name, what in _NEEDED.items():
            before, now = saved.get(name), getattr(self, name)
            if before != now:
                raise CheckpointError(
                    f"exact=True: the checkpoint was saved with {what} {before!r}, and this "
                    f"training has {now!r}, which gives different bits. Use the former; or load "
                    "without exact=True"
                )

    def go_on(self, saved: Mapping[str, Any]) -> None:
        """Continue with the random numbers of a state that `as_state` returned."""
        self.seed, self.step = int(saved["seed"]), int(saved["step"])


def is_state(saved: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value was written by `as_state`."""
    if not isinstance(saved, Mapping) or not {each.name for each in fields(ExactState)} <= {*saved}:
        return False
    return all(type(saved[name]) is int for name in ("seed", "step", "logical_shards"))
