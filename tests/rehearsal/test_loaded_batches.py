"""The samples that data loaders give, and the time that a program waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from anyrig.rehearsal.loaded_batches import LoaderWatch, count_samples

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
