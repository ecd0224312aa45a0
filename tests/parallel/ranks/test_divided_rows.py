"""Which rows of a global batch each rank has, and how parts are taken, joined and told apart."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_samples import numbers
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    TensorDataset,
)

from anyrig.errors import BatchError, RankMismatchError
from anyrig.parallel.ranks.balance import Balance
from anyrig.parallel.ranks.loaders.agreed_order import draw_alike
from anyrig.parallel.ranks.loaders.given_loader import allows_singles
from anyrig.parallel.ranks.loaders.part import count_samples, part_of, remove_sample
from anyrig.parallel.ranks.loaders.sampled import RankBatches
from anyrig.parallel.ranks.loaders.streamed import decode_empty, encode_empty, fingerprint
from anyrig.parallel.ranks.loaders.turns import Progress, Turns, part_of_rank, split_samples
from anyrig.parallel.ranks.metrics.gather import order_of_batches, order_samples
from anyrig.parallel.shares.shares import Shares
from anyrig.processes.group.membership import Group
from forked_programs import run_forked

weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=9).filter(any)


@settings(deadline=None)
@given(weights, st.integers(0, 1000))
def test_the_ranks_have_every_row_once_and_in_order(weights: list[float], rows: int) -> None:
    counts = split_samples(Shares(tuple(weights), "given"), rows)
    parts = [part_of_rank(counts, rank) for rank in range(len(weights))]
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))


@settings(deadline=None)
@given(weights, st.integers(0, 1000))
def test_no_rank_is_a_row_off_its_share(weights: list[float], rows: int) -> None:
    total = sum(weights)
    counts = split_samples(Shares(tuple(weights), "given"), rows)
    for weight, count in zip(weights, counts, strict=True):
        assert abs(count - rows * weight / total) < 1 + 1e-6


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(0, 100))
def test_even_shares_leave_no_rank_without_rows_but_for_lack_of_them(ranks: int, rows: int) -> None:
    counts = split_samples(Shares((1.0,) * ranks, "even"), rows)
    assert max(counts) - min(counts) <= 1


@settings(deadline=None)
@given(
    st.integers(0, 60),
    st.integers(1, 12),
    st.booleans(),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=5).filter(any),
    st.integers(0, 3),
    st.integers(0, 2**63 - 1),
)
def test_the_parts_of_all_ranks_are_the_global_batches(
    samples: int, batch: int, drop_last: bool, weights: list[float], skip: int, seed: int
) -> None:
    """They are in the sampler's order, and all ranks have as many, whatever the shares."""
    shares = Shares(tuple(weights), "given")
    data = range(max(samples, 1))
    expected = [*draw_alike(BatchSampler(RandomSampler(data), batch, drop_last), seed)][skip:]
    parts, counts = [], []
    for rank in range(len(weights)):
        batches = BatchSampler(RandomSampler(data), batch, drop_last)
        group = Group(rank, len(weights), torch.device("cpu"), "gloo", "a test")
        turns = Turns(rank=rank, balance=Balance(group, shares))
        mine = RankBatches(batches, turns, seed=seed, skip_batches=skip)
        random.random(), torch.rand(rank)  # ranks draw different numbers from the shared generators
        parts.append(list(mine))
        counts.append(list(mine.drawn))
    assert all(of_rank == counts[0] for of_rank in counts)
    for index, whole in enumerate(expected):
        joined = []
        for rank, of_rank in enumerate(parts):
            rows = counts[0][index][rank]
            joined += of_rank[index][:rows]
            assert len(of_rank[index]) == max(rows, 1)  # a sample shows the structure
        assert joined == whole
    assert [len(of_rank) for of_rank in parts] == [len(expected)] * len(weights)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), max_size=6))
def test_rows_are_put_back_into_the_order_of_their_samples(batches: list[list[int]]) -> None:
    sample, of_ranks = 0, [[], [], []]
    for batch in batches:
        for rank, rows in enumerate(batch):
            of_ranks[rank] += range(sample, sample + rows)
            sample += rows
    joined = torch.tensor([row for rows in of_ranks for row in rows], dtype=torch.int64)
    # A prefetched loader has drawn more batches than were used.
    order = order_of_batches([*batches, [5, 5, 5]], [len(rows) for rows in of_ranks])
    assert joined[order].tolist() == list(range(sample))


def test_rows_that_are_not_the_loader_s_are_refused() -> None:
    with pytest.raises(RankMismatchError, match=r"gave \[2, 3\] samples.* gave them \[3, 2\]"):
        order_of_batches([[3, 2]], [2, 3])
    with pytest.raises(TypeError, match="a list does not say which rank had which samples"):
        order_samples([], [1, 1])


@pytest.mark.parametrize(
    ("samples", "drop_last"), [(11, False), (12, False), (11, True), (2, False)]
)
def test_what_a_distributed_sampler_repeats_is_left_out(samples: int, drop_last: bool) -> None:
    data = TensorDataset(torch.arange(samples))
    samplers = [DistributedSampler(data, 3, rank, False, drop_last=drop_last) for rank in range(3)]
    rows = [list(sampler) for sampler in samplers]
    loader = DataLoader(data, sampler=samplers[0])
    order = order_samples(loader, [len(of_rank) for of_rank in rows])
    joined = torch.tensor([row for of_rank in rows for row in of_rank])
    assert joined[order].tolist() == list(range(samples - samples % 3 if drop_last else samples))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_some_rows_of_a_batch_of_any_structure() -> None:
    packed = pack_sequence([torch.full((length,), length) for length in (4, 2, 3)], False)
    nested = torch.nested.nested_tensor([torch.ones(i) for i in (1, 2, 3)])
    x = torch.arange(6).view(3, 2)
    batch = {
        "x": x,
        "names": ["a", "b", "c"],
        "pair": (x.double(), ("d", "e", "f")),
        "packed": packed,
        "nested": nested,
        "scale": torch.tensor(2.0),
        "epoch": 3,
    }
    assert count_samples(batch) == 3
    part = part_of(batch, slice(1, 3), 3)
    assert part["x"].tolist() == [[2, 3], [4, 5]]
    assert part["x"].data_ptr() == x[1:].data_ptr()
    assert part["names"] == ["b", "c"]
    assert part["pair"][1] == ("e", "f")
    lengths = torch.nn.utils.rnn.pad_packed_sequence(part["packed"])[1]
    assert lengths.tolist() == [2, 3]
    assert [len(row) for row in part["nested"].unbind()] == [2, 3]
    assert (part["scale"], part["epoch"]) == (batch["scale"], 3)
    none = remove_sample(part_of(batch | {"nested": None}, slice(0, 1), 3))
    assert none["x"].shape == (0, 2)
    assert none["names"] == []
    assert isinstance(none["packed"], PackedSequence)
    assert none["x"].untyped_storage().nbytes() == 0  # sent to other ranks


def test_a_batch_without_samples_as_bytes() -> None:
    batch = {
        "x": torch.zeros(0, 3, dtype=torch.bfloat16),
        "names": [],
        7: "a key that is no text",
        "rest": (torch.tensor(2.5), torch.tensor(True), None, float("inf"), "text"),
    }
    data = encode_empty(batch)
    assert data is not None
    again = decode_empty(data)
    assert (again["x"].shape, again["x"].dtype) == ((0, 3), torch.bfloat16)
    assert again["names"] == []
    assert again["rest"] == batch["rest"]
    for other in (torch.ones(2), {1: print}, [object()], pack_sequence([torch.ones(1)])):
        assert encode_empty(other) is None


def test_a_batch_that_lists_its_samples() -> None:
    image, target = torch.ones(3, 8, 8), {"boxes": torch.ones(2, 4)}
    assert remove_sample([(image, target)]) == []
    assert remove_sample(((image,), (target,))) == ((), ())
    padded = remove_sample({"pixels": torch.ones(1, 3, 8, 8), "labels": [target], "scale": 2})
    assert padded["pixels"].shape == (0, 3, 8, 8)
    assert (padded["labels"], padded["scale"]) == ([], 2)
    assert remove_sample({"names": ["a"]}) == {"names": []}


def test_a_batch_that_does_not_tell_its_rows() -> None:
    joined = {"image": torch.ones(1, 3, 8, 8), "boxes": torch.ones(5, 4)}
    with pytest.raises(
        BatchError, match=r"\['boxes'\] has shape \(5, 4\).*empty=lambda: \(\[\], \[\]\)"
    ):
        remove_sample(joined)
    with pytest.raises(BatchError, match="nothing in it counts samples"):
        remove_sample({"a": 1})
    with pytest.raises(BatchError, match=r"single sample, which distribute\(…, singles=True\)"):
        remove_sample(object())
    with pytest.raises(BatchError, match="divided=True"):
        count_samples({"a": 1})


def test_batches_are_told_apart_by_their_values() -> None:
    x = torch.arange(6.0).view(2, 3)
    batch = {"x": x, "pair": (torch.ones(0), "text"), "n": 2.5, "packed": pack_sequence([x[0]])}
    assert fingerprint(batch) == fingerprint(dict(reversed(batch.items())))
    assert fingerprint(batch) == fingerprint(batch | {"x": x.t().contiguous().t()})
    for other in ({"x": x + 1}, {"x": x.view(3, 2)}, {"x": x.double()}, {"n": 2}, {"n": None}):
        assert fingerprint(batch) != fingerprint(batch | other), other
    assert fingerprint(batch) != fingerprint(batch | {"packed": pack_sequence([x[1]])})
    assert fingerprint([object()]) == fingerprint([object()])


@pytest.mark.parametrize(
    ("loader", "ranks", "singles"),
    [
        (DataLoader(numbers(9), batch_size=4), 4, True),
        (DataLoader(numbers(9), batch_size=4), 3, False),
        (DataLoader(numbers(9), batch_sampler=BatchSampler(range(9), 2, False)), 2, True),
        (DataLoader(numbers(9), batch_sampler=[[0, 1], [2]]), 2, False),
        ([torch.ones(2)], 2, False),
    ],
)
def test_single_samples_are_meant_where_each_rank_has_one(
    loader: Any, ranks: int, singles: bool
) -> None:
    assert allows_singles(loader, ranks) is singles


def test_whether_a_rank_had_a_batch() -> None:
    """Batch 2 is the third one."""
    assert Progress(iteration=0, drawn=3, ended=False, before=0).has(0, 2) is True
    assert Progress(0, 3, False, 0).has(0, 3) is None  # the rank may still draw it
    assert Progress(0, 3, True, 0).has(0, 3) is False
    assert Progress(1, 0, False, before=3).has(0, 2) is True
    assert Progress(1, 0, False, before=3).has(0, 3) is False
    assert Progress(2, 9, False, before=9).has(0, 2) is False
    assert Progress(0, 3, True, 0).has(1, 0) is None


def test_batches_without_values_are_told_apart_by_their_shapes() -> None:
    program = """if True:
        import anyrig.virtual
        anyrig.virtual.install("T4", shape_only=True)
        import torch
        from anyrig.parallel.ranks.loaders.streamed import fingerprint
        found = [fingerprint(torch.full((n,), float(n), device="cuda")) for n in (2, 2, 3)]
        assert found[0] == found[1] != found[2]
    """
    finished = run_forked("-c", program)
    assert finished.returncode == 0, finished.stderr
