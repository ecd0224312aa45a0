"""Batches that the collate function makes anew on one device, from the ranks' samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from anyrig.errors import VerificationError
from anyrig.verification.loaders import RecordedLoaders
from anyrig.verification.merging import merge_batches
from anyrig.verification.recollation import Recollation
from anyrig.verification.records import LoadedBatch, RankRecord

SAMPLES = [torch.arange(1, length + 1) for length in (2, 5, 3, 1)]


def in_rows(samples: Sequence[Tensor]) -> Tensor:
    return pad_sequence(samples, batch_first=True)


def in_columns(samples: Sequence[Tensor]) -> Tensor:
    return pad_sequence(samples)


def from_the_right(samples: Sequence[Tensor]) -> Tensor:
    return pad_sequence(samples, batch_first=True, padding_side="left")


def unpadded(samples: Sequence[Tensor]) -> dict[str, Any]:
    return {"words": [*samples], "longest": max(map(len, samples)), "names": ["x"] * len(samples)}


def of_ranks(collate: Callable[[Any], Any]) -> Any:
    """What one device is to load in place of two ranks' batches."""
    ranks = [
        RankRecord(number, 2, (), batches=(LoadedBatch(0, 0, 0, collate(part), indices),))
        for number, (part, indices) in enumerate([(SAMPLES[::2], (0, 2)), (SAMPLES[1::2], (1, 3))])
    ]
    return merge_batches(ranks)[0, 0].batch


@pytest.mark.parametrize("collate", [in_rows, in_columns, from_the_right, unpadded])
def test_the_collate_function_makes_the_batch_of_all_samples(
    collate: Callable[[Any], Any],
) -> None:
    parts = of_ranks(collate)
    assert isinstance(parts, Recollation)
    batch = parts.collate(SAMPLES, collate)
    parts.check(batch, collate)
    in_order = [SAMPLES[place] for place in (0, 2, 1, 3)]
    assert str(batch) == str(collate(in_order))


def test_batches_of_one_shape_are_joined() -> None:
    def to_five(samples: Sequence[Tensor]) -> Tensor:
        return in_rows([*samples, torch.zeros(5, dtype=torch.int64)])[:-1]

    assert of_ranks(to_five).tolist() == to_five([SAMPLES[k] for k in (0, 2, 1, 3)]).tolist()


@pytest.mark.parametrize(
    "change",
    # x[2:] is the batch of one rank alone
    [lambda x: x + 1, lambda x: x[:3], lambda x: x[2:], Tensor.float, lambda x: [x]],
)
def test_other_values_than_those_of_the_ranks_are_refused(change: Callable[[Tensor], Any]) -> None:
    parts = of_ranks(in_rows)
    batch = change(parts.collate(SAMPLES, in_rows))
    with pytest.raises(VerificationError, match=r"shapes \(2, 3\), \(2, 5\); on one device, the"):
        parts.check(batch, in_rows)


def test_a_collate_function_that_cannot_join_the_samples_is_named() -> None:
    with pytest.raises(VerificationError, match="collate function stack raised RuntimeError"):
        of_ranks(in_rows).collate(SAMPLES, torch.stack)


def test_samples_without_indices_are_refused_with_a_remedy() -> None:
    ranks = [
        RankRecord(number, 2, (), batches=(LoadedBatch(0, 0, 0, torch.ones(2, width)),))
        for number, width in enumerate((3, 4))
    ]
    with pytest.raises(VerificationError, match=r"has no indices .*pad\(sample"):
        merge_batches(ranks)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_indices_of_batches_are_recorded(workers: int) -> None:
    loader = DataLoader(
        SAMPLES, 1, num_workers=workers, persistent_workers=workers > 0, collate_fn=in_rows
    )
    recorded = RecordedLoaders(lambda: 0, False, None)
    recorded.start()
    try:
        next(iter(loader))  # workers have loaded further batches
        assert len([*loader]) == 4
    finally:
        recorded.stop()
    found = [one.indices for one in recorded.batches]
    assert found == [(0,), (0,), (1,), (2,), (3,), None]


def test_the_batch_is_widened_like_those_of_the_ranks() -> None:
    samples = [sample.float() for sample in SAMPLES]
    parts = tuple(in_rows(samples[rank::2]).double() for rank in range(2))
    replayed = {(0, 0): LoadedBatch(0, 0, 0, Recollation(parts, ((0, 2), (1, 3))))}
    recorded = RecordedLoaders(lambda: 0, True, replayed)
    recorded.start()
    try:
        batch = next(iter(DataLoader(samples, 4, collate_fn=in_rows)))
    finally:
        recorded.stop()
    assert batch.dtype == torch.float64
    assert recorded.batches[0].is_recollated


def test_a_data_set_that_loads_several_samples_at_once_does_so() -> None:
    class Lists:
        def __getitems__(self, places: list[int]) -> list[Tensor]:
            return [SAMPLES[place] for place in places]

    batch = of_ranks(in_rows).collate(Lists(), in_rows)
    assert batch[:, 0].tolist() == [1, 1, 1, 1]
    assert batch[2].tolist() == [1, 2, 3, 4, 5]
