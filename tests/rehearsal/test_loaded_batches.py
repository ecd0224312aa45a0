"""The samples that data loaders give, and the time that a program waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from anyrig import prefetch
from anyrig.rehearsal.loaded_batches import LoaderWatch, count_samples
from anyrig.rehearsal.step_ends import samples_of_steps

X = torch.ones(6, 2)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (X, 6),
        (torch.ones(5), 5),
        (torch.ones(()), None),
        ([torch.ones(()), X], 6),
        ((torch.ones(3), X), 3),  # the first tensor
        ({"text": ["a"] * 9, "x": X, "y": torch.ones(2)}, 6),
        ([{"x": (X,)}, torch.ones(2)], 6),
        (["a", 7], None),
        ([], None),
    ],
)
def test_the_samples_of_a_batch(batch: Any, samples: int | None) -> None:
    assert count_samples(batch) == samples


class Slow(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(2):
            time.sleep(0.02)
            yield torch.ones(3)


def test_batches_and_waits_add_up_until_they_are_taken() -> None:
    watch = LoaderWatch()
    watch.start()
    try:
        for _ in DataLoader(TensorDataset(X), batch_size=4):
            pass
        for _ in DataLoader(Slow(), batch_size=None):
            pass
        samples, seconds = watch.take()
        assert samples == 6 + 2 * 3
        assert seconds >= 0.04
        assert watch.take() == (None, 0.0)
    finally:
        watch.stop()
    for _ in DataLoader(TensorDataset(X)):
        pass
    assert watch.take() == (None, 0.0)


@pytest.mark.parametrize(
    ("loaded", "computed"),
    [
        ([96, 32, 32, 32, 16, None, None], [32, 32, 32, 32, 32, 32, 16]),
        ([64, 32, None] * 2, [32] * 6),  # two epochs
        ([96, 32, 32], None),  # the program ends before its loader
        ([32, None, 32, None], None),  # two steps with each batch
        ([256, None, None], None),  # all data before the first step
        ([None, None], None),
        ([], None),
    ],
)
def test_batches_that_are_loaded_ahead_count_where_they_are_used(
    loaded: list[int | None], computed: list[int] | None
) -> None:
    assert samples_of_steps(loaded) == (loaded if computed is None else computed)


@pytest.mark.gpus(1)
def test_prefetched_batches_count_once_each() -> None:
    watch = LoaderWatch()
    watch.start()
    try:
        loader = prefetch(DataLoader(TensorDataset(torch.ones(30, 2)), batch_size=4), "cuda")
        loaded = [watch.take()[0] for _ in loader]
    finally:
        watch.stop()
    assert None in loaded
    assert samples_of_steps(loaded) == [4] * 7 + [2]
