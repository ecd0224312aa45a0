"""How a loader is divided, tested in one process, without a group."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
)

import anyrig
from anyrig.errors import BatchError, RankMismatchError
from anyrig.parallel.ranks.balance import Balance
from anyrig.parallel.ranks.loaders.agreed_order import draw_alike
from anyrig.parallel.ranks.loaders.given_loader import allows_singles, global_batches_of
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


class Lazy(Sampler[int]):
    """Draws lazily, from every generator."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            own = torch.randint(100, (1,), generator=self.generator).item()
            yield own + torch.randint(100, (1,)).item() + random.randrange(100)
            yield int(numpy.random.randint(100))


def test_a_sampler_draws_alike_whatever_the_program_draws_meanwhile() -> None:
    found = []
    for turn in range(3):
        torch.manual_seed(turn), random.seed(turn), numpy.random.seed(turn)
        before = torch.rand(2), random.random(), numpy.random.rand()
        drawn = []
        torch.manual_seed(turn), random.seed(turn), numpy.random.seed(turn)
        for index in draw_alike(BatchSampler(Lazy(turn), 3, False), 17):
            drawn.append(index)
            if len(drawn) == turn:
                after = torch.rand(2), random.random(), numpy.random.rand()
                assert str(after) == str(before)  # the program's numbers are unchanged
        found.append(drawn)
    assert found[0] == found[1] == found[2]
    assert found[0] != list(draw_alike(BatchSampler(Lazy(), 3, False), 18))


def numbers(rows: int) -> TensorDataset:
    return TensorDataset(torch.arange(rows, dtype=torch.float64), torch.arange(rows))


def test_alone_the_batches_are_whole_and_the_loader_is_as_it_was() -> None:
    data = numbers(10)
    given = DataLoader(data, batch_size=4, shuffle=True)
    loader = anyrig.distribute(given, shares=[3, 1])  # a script for two ranks, in one process
    assert (len(loader), loader.batch_size, loader.dataset) == (3, 4, data)
    assert loader.sampler is given.sampler
    assert not hasattr(loader, "nothing")
    assert repr(loader).startswith("distribute(<torch.utils.data.dataloader.DataLoader")
    batches = list(loader)
    assert (
        [len(x) for x, _ in batches]
        == [4, 4, 2]
        == [sum(rows) for rows in loader.samples_of_batches]
    )
    assert sorted(torch.cat([y for _, y in batches]).tolist()) == list(range(10))


def order(loader: Any) -> list[int]:
    return [int(row) for _, y in loader for row in y]


def test_epochs_differ_and_can_be_resumed() -> None:
    torch.manual_seed(3)
    loader = anyrig.distribute(DataLoader(numbers(20), batch_size=4, shuffle=True))
    epochs = [order(loader) for _ in range(3)]
    assert loader.epoch == 3
    assert epochs[0] != epochs[1] != epochs[2]
    torch.manual_seed(3)
    again = anyrig.prefetch(
        anyrig.distribute(DataLoader(numbers(20), batch_size=4, shuffle=True)), "cpu"
    )
    again.set_epoch(1, skip_batches=2)
    assert order(again) == epochs[1][8:]
    assert order(again) == epochs[2]
    other = anyrig.distribute(DataLoader(numbers(20), batch_size=4, shuffle=True), seed=4)
    assert order(other) != epochs[0]


class KeepsEpochs:
    epochs: list[int]

    def __init__(self) -> None:
        self.epochs = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class SamplerThatKeeps(KeepsEpochs, Sampler[int]): ...


class StreamThatKeeps(KeepsEpochs, IterableDataset[int]): ...


def test_samplers_and_streams_are_told_the_epoch() -> None:
    sampler, stream = SamplerThatKeeps(), StreamThatKeeps()
    given = [DataLoader(numbers(4), batch_size=2, sampler=sampler), DataLoader(stream, 2)]
    for keeper, loader in zip((sampler, stream), map(anyrig.distribute, given), strict=True):
        assert [len(list(loader)) for _ in range(2)] == [2, 2]
        assert keeper.epochs == [0, 1]


def test_the_order_is_that_of_the_loader_s_generator() -> None:
    found = []
    for program_seed, own_seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(program_seed)
        generator = torch.Generator().manual_seed(own_seed)
        given = DataLoader(numbers(20), batch_size=4, shuffle=True, generator=generator)
        found.append(order(anyrig.distribute(given)))
    assert found[0] == found[1] != found[2]


def collate(samples: list[Any]) -> list[Any]:
    return samples


def start(worker: int) -> None: ...


def test_the_loader_is_built_again_with_all_its_options() -> None:
    options: dict[str, Any] = {
        "num_workers": 1,
        "collate_fn": collate,
        "timeout": 30,
        "worker_init_fn": start,
        "multiprocessing_context": "fork",
        "prefetch_factor": 3,
        "persistent_workers": True,
    }
    given = DataLoader(numbers(4), batch_sampler=[[0, 1], [3]], **options)
    built = anyrig.distribute(given)._division._loader
    for name in options:
        assert getattr(built, name) == getattr(given, name), name
    # An option that the table above does not contain would be lost.
    known = {*options, "dataset", "pin_memory", "pin_memory_device", "generator", "in_order"}
    known |= {"batch_size", "drop_last", "sampler", "batch_sampler"}
    assert {name for name in vars(given) if not name.startswith("_")} <= known


def test_it_goes_with_its_last_user() -> None:
    """A loader that the cycle collector frees would wait ten seconds for its workers."""
    loader = anyrig.distribute(DataLoader(numbers(4), batch_size=2))
    list(loader)
    built = weakref.ref(loader._division._loader)
    gc.disable()
    try:
        del loader
        assert built() is None
    finally:
        gc.enable()


def test_only_loaders_that_draw_by_index_are_built_again() -> None:
    class Iterates(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter(())

    assert global_batches_of(DataLoader(numbers(2))) is not None
    assert global_batches_of(DataLoader(numbers(2), batch_size=None)) is None
    assert global_batches_of(Iterates(numbers(2))) is None
    assert global_batches_of([1]) is None
    with pytest.raises(BatchError, match=r"batch_size=None and shuffles.*BatchSampler as its"):
        anyrig.distribute(DataLoader(numbers(2), batch_size=None, shuffle=True))
    assert list(anyrig.distribute(Iterates(numbers(2)))) == []


def test_a_dataset_that_takes_a_list_of_indices() -> None:
    batches = BatchSampler(RandomSampler(range(10)), 4, False)
    given = DataLoader(numbers(10), batch_size=None, sampler=batches)
    loader = anyrig.distribute(given)
    assert [len(x) for x, _ in loader] == [4, 4, 2]
    assert sorted(order(loader)) == list(range(10))


def test_what_is_no_loader_is_refused() -> None:
    with pytest.raises(BatchError, match="a value of type int: it cannot be iterated over"):
        anyrig.distribute(3)  # type: ignore[type-var]


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


@pytest.mark.parametrize("loader", [DataLoader(numbers(20), 4), [torch.ones(2)]], ids=["", "list"])
def test_a_loader_is_distributed_once(loader: Any) -> None:
    once = anyrig.distribute(loader)
    for again in (once, anyrig.prefetch(once, "cpu")):
        with pytest.raises(
            BatchError, match=r"distributed already.* the loader of the global batch"
        ):
            anyrig.distribute(again)


@pytest.mark.gpus(1)
def test_a_prefetched_loader_is_distributed_once() -> None:
    once = anyrig.prefetch(anyrig.distribute(DataLoader(numbers(20), 4)), "cuda:0")
    with pytest.raises(BatchError, match="distributed already"):
        anyrig.distribute(once)


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
