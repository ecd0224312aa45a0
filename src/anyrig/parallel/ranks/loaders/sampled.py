"""A loader that draws samples by index: each rank loads only its part of a global batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from ....errors import RankMismatchError
from ...engines.exact.seeded_samples import SeededSamples, with_seeds
from .agreed_order import draw_alike, mix_seed
from .part import remove_sample
from .turns import Turns

_KEPT_OPTIONS = (
    *("num_workers", "worker_init_fn", "multiprocessing_context", "persistent_workers"),
    *("prefetch_factor", "timeout", "collate_fn", "pin_memory", "pin_memory_device"),
)


class SampledDivision:
    """Rebuilds a `DataLoader` with this rank's batch sampler and all its other options.

    No attribute refers back to this object, so that its last user frees it, and the loader ends its
    workers at once. The garbage collector would free a reference cycle too late.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        global_batches: Iterable[Sequence[Any]],
        turns: Turns,
        seed: int,
        empty: Callable[[], Any] | None,
    ) -> None:
        self.turns = turns
        self._given = loader
        self.seed = seed
        self._empty = empty
        self._batches = RankBatches(global_batches, turns, loader.dataset)
        # The loader draws the seed of its workers' random numbers from this generator.
        self._generator = torch.Generator("cpu")
        collates = loader.batch_sampler is not None
        # in_order is left True: parts of one global batch must come in the same step.
        seeded = turns.logical_shards is not None and collates
        self._batches.seeded = seeded
        self._loader = DataLoader(
            SeededSamples(loader.dataset) if seeded else loader.dataset,
            batch_size=1 if collates else None,  # 1 is the default, which a batch sampler needs
            sampler=None if collates else self._batches,
            batch_sampler=self._batches if collates else None,
            generator=self._generator,
            **{name: getattr(loader, name) for name in _KEPT_OPTIONS},
        )

    def batches(self, epoch: int, skip_batches: int) -> Iterator[Any]:
        """Begin an iteration."""
        given = self._given
        self.turns.begin(epoch, given.sampler, given.batch_sampler, given.dataset)
        self._batches.seed = mix_seed(self.seed, epoch)
        self._batches.skip_batches = skip_batches
        self._batches.drawn.clear()
        self._generator.manual_seed(mix_seed(self.seed, epoch, self.turns.part))
        with torch.device("cpu"):  # the generator's; the program may have set another default
            return self._yield_batches(iter(self._loader))

    def _yield_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            counts = self._batches.drawn.popleft()
            self.turns.use(counts)
            if counts[self.turns.part] or not any(counts):
                yield batch
            else:
                yield remove_sample(batch) if self._empty is None else self._empty()


@dataclass(eq=False)
class RankBatches:
    """Draws the global batches of one iteration, and yields this rank's indices of each.

    If this rank has no samples in a batch, yield the batch's first index. The loader needs one
    sample to collate, and `SampledDivision` then removes the sample.
    """

    global_batches: Iterable[Sequence[Any]]
    turns: Turns
    dataset: Any = None
    seed: int = 0
    skip_batches: int = 0
    seeded: bool = False  # whether each index comes with a seed, for `SeededSamples`
    # How many samples each rank has in the batches drawn but not yet yielded.
    drawn: deque[tuple[int, ...]] = field(default_factory=deque)

    def __iter__(self) -> Iterator[list[Any]]:
        skip_batches = self.skip_batches
        for index, batch in enumerate(draw_alike(self.global_batches, self.seed)):
            indices = list(batch)
            if index == 0:
                self._check(indices)
            if index >= skip_batches:
                counts = self.turns.divide(index, len(indices))
                self.drawn.append(counts)
                if self.seeded:
                    indices = with_seeds(indices, self.seed, index)
                yield self.turns.own(indices, counts) or indices[:1]

    def _check(self, first: list[Any]) -> None:
        """Raise RankMismatchError if rank 0 begins with a different batch."""
        dataset = self.dataset
        while isinstance(dataset, Subset):  # two ranks' subsets may have different samples
            first = [dataset.indices[index] for index in first]
            dataset = dataset.dataset
        own = repr(first)
        expected = self.turns.first_of_rank_0(own.encode()).decode()
        if expected != own:
            raise RankMismatchError(
                f"the sampler of rank {self.turns.rank} begins with {_shorten(own)}, that of rank "
                f"0 with {_shorten(expected)}, but all need the same order. anyrig.distribute "
                "seeds PyTorch's, Python's and NumPy's random numbers and a sampler's attribute "
                "`generator`. Seed anything else that this sampler draws from, give it the whole "
                "data on every rank, and give random_split a seeded generator"
            )


def _shorten(text: str) -> str:
    return text if len(text) < 80 else f"{text[:80]} …"
