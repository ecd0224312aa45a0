"""A dataset whose random augmentation does not depend on the rank or worker that loads a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from ...ranks.loaders.agreed_order import mix_seed, same_random_state, seed_generators


class SeededIndex(NamedTuple):
    """A sample, and the seed of the random numbers with which it is loaded."""

    index: Any
    seed: int


def with_seeds(indices: Sequence[Any], seed: int, batch: int) -> list[SeededIndex]:
    """Return the indices of a global batch, each with a seed of its own."""
    return [SeededIndex(each, mix_seed(seed, batch, place)) for place, each in enumerate(indices)]


class SeededSamples(Dataset[Any]):
    """Loads the samples of `dataset` one by one, each with its own random numbers."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __getitems__(self, indices: Sequence[SeededIndex]) -> list[Any]:
        """Return samples, and restore the state of the program's random numbers."""
        found = []
        with same_random_state():
            for index, seed in indices:
                seed_generators(seed)
                found.append(self.dataset[index])
        return found
