"""One device's batches from those of the ranks."""

from __future__ import annotations

import torch

from anyrig.verification.merging import merge_batches
from anyrig.verification.records import LoadedBatch, RankRecord, StepRecord
from anyrig.verification.samples import hash_samples


def first_numbers(*, has_batch_statistics: bool) -> list[list[float]]:
    """Return the samples of two micro-batches of one step after the merge, by their numbers."""
    parts = torch.arange(8.0).view(2, 2, 2)
    forwards = [hashed[0] for part in parts if (hashed := hash_samples(part)) is not None]
    batches = tuple(LoadedBatch(0, number, 0, part) for number, part in enumerate(parts))
    record = RankRecord(
        0, 1, (StepRecord({}, {}, {}, forwards=forwards),),
        has_batch_statistics=has_batch_statistics, batches=batches,
    )  # fmt: skip
    merged = merge_batches([record])
    return [merged[0, number].batch[:, 0].tolist() for number in range(2)]


def test_samples_are_dealt_anew_unless_a_batch_norm_depends_on_their_batch() -> None:
    assert first_numbers(has_batch_statistics=False) == [[0, 4], [2, 6]]
    assert first_numbers(has_batch_statistics=True) == [[0, 2], [4, 6]]
