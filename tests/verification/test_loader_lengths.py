"""A data loader of the run on one device has as many batches as one of a rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from epoch_ends import EXPECTED
from torch.utils.data import DataLoader

from anyrig.observe.hooks import Replacements
from anyrig.verification.loader_lengths import LoaderLengths
from anyrig.verification.records import RankRecord
from anyrig.verification.replay import Replay
from forked_ranks import run_forked

RANKS = ((1, 5), (0, 7), (2, 9))  # each with the length of its loader


def lengths_of(lengths: LoaderLengths, *loaders: DataLoader[int]) -> list[int]:
    """Return the lengths of loaders while they are recorded or replayed."""
    replacements = Replacements()
    lengths.start(replacements)
    try:
        return [len(loader) for loader in loaders]
    finally:
        replacements.restore()


def test_lengths_are_known_by_the_order_in_which_they_are_first_read() -> None:
    first, second, third = (DataLoader(range(count), 2) for count in (8, 6, 4))
    recorded = LoaderLengths()
    assert lengths_of(recorded, second, first, second, first) == [3, 4, 3, 4]
    assert recorded.recorded == [3, 4]
    replayed = LoaderLengths([7, 9])
    assert lengths_of(replayed, first, second, first, third) == [7, 9, 7, 2]
    assert len(first) == 4


def test_one_device_is_rank_0() -> None:
    ranks = [RankRecord(rank, 3, (), loader_lengths=(lengths,)) for rank, lengths in RANKS]
    assert Replay.of(ranks).lengths == (7,)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_end_of_an_epoch_is_where_it_is_in_the_ranks(ranks: int, tmp_path: Path) -> None:
    file = str(Path(__file__).with_name("verdicts_of_ranks.py"))
    cases = [("epoch_ends", name, "float64") for name in EXPECTED]
    run_forked(file, "run_rank", [cases, str(tmp_path)], ranks)
    found = json.loads((tmp_path / "verdicts.json").read_text())
    for (code, text), (expected, part) in zip(found, EXPECTED.values(), strict=True):
        assert code == expected, text
        assert part in text
