"""Batches: recorded from loaders, put together over ranks, and identified by their samples."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from anyrig.errors import VerificationError
from anyrig.verification.initial_values import initial_values
from anyrig.verification.loaders import RecordedLoaders, widen
from anyrig.verification.merging import deal_anew, join_values, merge_batches
from anyrig.verification.piece import Piece
from anyrig.verification.records import LoadedBatch, RankRecord, StepRecord
from anyrig.verification.samples import count_labels, digest_of, hash_samples

Pair = namedtuple("Pair", "x y")
ONE, OTHER = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])


def rank(number: int, *batches: Any) -> RankRecord:
    loaded = tuple(LoadedBatch(0, place, 0, batch) for place, batch in enumerate(batches))
    return RankRecord(number, 2, (), batches=loaded)


def merged(*batches: Any) -> Any:
    """The batch of one device, from those that the ranks loaded at the same time."""
    return merge_batches([rank(number, one) for number, one in enumerate(batches)])[0, 0].batch


def test_batches_are_put_together_in_the_order_of_ranks() -> None:
    assert merged(ONE, OTHER).tolist() == [[1], [2], [3]]
    assert merged(OTHER, ONE).tolist() == [[3], [1], [2]]


def test_equal_batches_count_once() -> None:
    assert merged(ONE, ONE.clone(), OTHER).tolist() == [[1], [2], [3]]
    assert merged(ONE, ONE.double(), ONE).shape == (4, 1)  # of another type


def test_a_rank_whose_loader_has_ended_adds_nothing() -> None:
    assert merged(None, ONE).tolist() == [[1], [2]]
    assert merged(None, None) is None


def test_numbers_beside_the_samples_may_be_equal() -> None:
    scale = torch.tensor(3.0)
    for other, rows in ((ONE, 2), (OTHER, 3)):
        found = merged((ONE, scale), (other.clone(), scale.clone()))
        assert found[0].shape == (rows, 1)
        assert found[1].item() == 3


@pytest.mark.parametrize(
    ("one", "other", "whole"),
    [
        ({"x": ONE, "n": 3}, {"x": OTHER, "n": 3}, {"x": [[1], [2], [3]], "n": 3}),
        ([ONE, ["a", "b"]], [OTHER, ["c"]], [[[1], [2], [3]], ["a", "b", "c"]]),
        ((ONE, ("a", "b")), (OTHER, ("c",)), ([[1], [2], [3]], ("a", "b", "c"))),
        (Pair(ONE, None), Pair(OTHER, None), Pair([[1], [2], [3]], None)),
    ],
)
def test_batches_of_any_structure(one: Any, other: Any, whole: Any) -> None:
    def plain(values: Any) -> Any:
        if isinstance(values, torch.Tensor):
            return values.tolist()
        if isinstance(values, dict):
            return {key: plain(value) for key, value in values.items()}
        if isinstance(values, Pair):
            return Pair(*map(plain, values))
        if isinstance(values, (list, tuple)):
            return type(values)(map(plain, values))
        return values

    found = plain(join_values([one, other]))
    assert found == whole
    assert type(found) is type(whole)


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        (ONE, torch.ones(2, 3), r"shapes \(2, 1\), \(2, 3\), which cannot be put together"),
        (torch.tensor(1), torch.tensor(2), r"shapes \(\), \(\), which cannot"),
        ((ONE, 3), (OTHER, 4), "parts of the type int, which cannot"),
        ([ONE, ONE], [OTHER], "lists of the lengths 2, 1, which cannot"),
        ([ONE], [OTHER, OTHER], "lists of the lengths 1, 2, which cannot"),
    ],
)
def test_batches_that_do_not_fit_are_named(one: Any, other: Any, reason: str) -> None:
    with pytest.raises(VerificationError, match=reason):
        join_values([one, other])


def numbers(batches: Sequence[LoadedBatch]) -> list[Any]:
    return [each.batch.flatten().tolist() for each in batches]


def test_samples_are_dealt_one_to_each_micro_batch_in_turn() -> None:
    parts = [LoadedBatch(0, k, 0, torch.arange(3.0 * k, 3.0 * k + 3).view(3, 1)) for k in range(2)]
    assert numbers(deal_anew(parts)) == [[0, 2, 4], [1, 3, 5]]
    assert [each.number for each in deal_anew(parts)] == [0, 1]
    assert numbers(deal_anew(parts[:1])) == [[0, 1, 2]]
    unequal = [parts[0], LoadedBatch(0, 1, 0, torch.ones(2, 1))]
    assert numbers(deal_anew(unequal)) == [[0, 1, 2], [1, 1]]
    other_shapes = [parts[0], LoadedBatch(0, 1, 0, torch.ones(3, 2))]
    assert deal_anew(other_shapes) == other_shapes


def test_everything_beside_a_sample_is_dealt_with_it() -> None:
    parts = [
        LoadedBatch(0, k, 0, {"x": torch.tensor([k, k + 10]), "name": [f"a{k}", f"b{k}"]})
        for k in range(2)
    ]
    first, second = (each.batch for each in deal_anew(parts))
    assert (first["x"].tolist(), first["name"]) == ([0, 1], ["a0", "a1"])
    assert (second["x"].tolist(), second["name"]) == ([10, 11], ["b0", "b1"])


def test_batches_of_other_steps_are_dealt_by_themselves() -> None:
    parts = list(torch.arange(8.0).view(4, 2, 1))
    forwards = [hashed[0] for part in parts if (hashed := hash_samples(part)) is not None]
    steps = tuple(StepRecord({}, {}, {}, forwards=forwards[k : k + 2]) for k in (0, 2))
    batches = tuple(LoadedBatch(0, k, 0, part) for k, part in enumerate(parts))
    found = merge_batches([RankRecord(0, 1, steps, batches=batches)])
    assert numbers([found[0, k] for k in range(4)]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    forwards[3] = forwards[0]  # a sample of two steps
    steps = tuple(StepRecord({}, {}, {}, forwards=forwards[k : k + 2]) for k in (0, 2))
    found = merge_batches([RankRecord(0, 1, steps, batches=batches)])
    assert numbers([found[0, k] for k in range(4)]) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_sample_is_known_by_its_values_in_every_type() -> None:
    found = hash_samples((torch.tensor(3), {"x": ONE}, OTHER))
    assert found is not None
    hashes, shape = found
    assert len(set(hashes)) == 2
    assert shape == (1,)
    assert hash_samples([ONE.double()]) == found
    assert hash_samples(ONE.flip(0)) == (hashes[::-1], shape)
    assert hash_samples((torch.tensor(3), "a")) is None
    assert hash_samples(torch.empty(0, 3)) == ((), (3,))


def test_a_digest_is_of_all_tensors_with_their_types_and_shapes() -> None:
    digests = {
        digest_of(each)
        for each in (ONE, (ONE, OTHER), (OTHER, ONE), ONE.view(1, 2), ONE.view(torch.int32), [])
    }
    assert len(digests) == 6
    assert digest_of((ONE, "a")) == digest_of([ONE.clone()])


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ((ONE, torch.tensor([1, -100, 2])), 2),
        ((torch.tensor([True, False, True]), ONE), 2),
        ((torch.tensor([1, 2, 3]),), None),
        ((ONE,), None),
        ((torch.tensor([-100, 1]), torch.tensor([True, True, True])), 3),
    ],
)
def test_labels_are_counted_where_they_can_be_seen(values: Any, count: int | None) -> None:
    assert count_labels(values) == count


def test_only_float32_is_widened_in_containers_of_any_class() -> None:
    values = OrderedDict(a=[ONE, torch.tensor([1])], b=Pair(ONE.half(), "text"), c=(ONE,))
    wide = widen(values)
    assert type(wide) is OrderedDict
    assert [each.dtype for each in wide["a"]] == [torch.float64, torch.int64]
    assert type(wide["b"]) is Pair
    assert wide["b"].x.dtype == torch.float16
    assert wide["b"].y == "text"
    assert wide["c"][0].dtype == torch.float64
    assert ONE.dtype == torch.float32


@pytest.mark.parametrize("widens", [False, True])
def test_loaders_are_recorded_and_delivered_again(widens: bool) -> None:
    loader = DataLoader(torch.arange(4.0), batch_size=2)
    recorded = RecordedLoaders(lambda: 7, widens, None)
    original = type(iter(loader)).__next__
    recorded.start()
    try:
        seen = [batch for _ in range(2) for batch in loader]
    finally:
        recorded.stop()
    assert type(iter(loader)).__next__ is original
    assert {batch.dtype for batch in seen} == {torch.float64 if widens else torch.float32}
    seen[0].zero_()  # the record is a copy
    places = [(one.iteration, one.number, one.step) for one in recorded.batches]
    assert places == [(i, k, 7) for i in range(2) for k in range(3)]
    assert [one.batch is None for one in recorded.batches] == [False, False, True] * 2
    assert recorded.batches[0].batch.tolist() == [0, 1]
    ends: list[int] = []
    record = {(0, k): recorded.batches[k] for k in (1, 2)}
    replayed = RecordedLoaders(
        lambda: 0, widens, {(0, 0): record[0, 1]} | record, lambda: ends.append(1)
    )
    replayed.start()
    try:
        assert [batch.tolist() for batch in loader] == [[2, 3], [2, 3]]
        assert ends == []
        assert list(loader) == []
        assert ends == [1]  # the record has no batch of a second iteration
    finally:
        replayed.stop()


def test_the_values_of_the_first_rank_are_where_one_device_begins() -> None:
    def begins(number: int, **values: float) -> RankRecord:
        pieces = {name: Piece(torch.tensor([value]), (1,), (0,)) for name, value in values.items()}
        return RankRecord(number, 2, (StepRecord({}, pieces, {}), StepRecord({}, {}, {})))

    found = initial_values([begins(0, a=1.0), begins(1, a=2.0, b=3.0)])
    assert {name: value.item() for name, value in found.items()} == {"a": 1.0, "b": 3.0}
