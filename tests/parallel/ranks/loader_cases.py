"""What ranks do in `test_group_ranks.py`: loaders, samplers and streams that are divided."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import islice
from typing import Any

import pytest
import torch
from group_of_ranks import device, rank, ranks
from numbered_samples import numbers
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
)

import anyrig
from anyrig.errors import BatchError, RankMismatchError, SharesError
from anyrig.parallel.ranks.loaders.agreed_order import draw_alike, mix_seed


def global_order(loader: Any) -> list[int]:
    """Return the samples of one epoch in the order of the global batches."""
    seen = [y for _, y in loader]
    counts = anyrig.gather_over_ranks(len(seen))
    assert len(set(counts)) == 1, f"the ranks have {counts} batches"
    return anyrig.gather_over_ranks(torch.cat(seen).cpu(), loader=loader).tolist()


def case_every_sample_once_in_the_order_of_one_process() -> None:
    torch.manual_seed(5 if rank() == 0 else 99)  # rank 0's seed counts
    loader = anyrig.distribute(DataLoader(numbers(23), batch_size=5, shuffle=True))
    torch.manual_seed(5)
    epochs = []
    for epoch in range(2):
        torch.rand(rank())
        epochs.append(global_order(loader))
        assert sorted(epochs[-1]) == list(range(23)), epoch
        expected = [(3, 2, 0), (3, 2, 0), (3, 2, 0), (3, 2, 0), (3, 0, 0)]
        if ranks() == 3:
            assert loader.samples_of_batches == expected
    assert epochs[0] != epochs[1]
    alone = draw_alike(
        DataLoader(numbers(23), batch_size=5, shuffle=True).batch_sampler, mix_seed(5, 0)
    )
    assert [i for batch in alone for i in batch] == epochs[0]


def case_resuming() -> None:
    loader = anyrig.distribute(DataLoader(numbers(23), batch_size=5, shuffle=True), seed=2)
    epochs = [global_order(loader) for _ in range(2)]
    loader.set_epoch(1, skip_batches=3)
    assert global_order(loader) == epochs[1][15:]


def case_resuming_where_ranks_have_batches_of_their_own() -> None:
    given = [torch.ones(2, 3) for _ in range(3 + rank())]
    loader = anyrig.distribute(given, divided=True)
    loader.set_epoch(0, skip_batches=2)
    assert [len(batch) for batch in loader] == [2] * (1 + rank()) + [0] * (ranks() - 1 - rank())


def case_samples_are_counted_along_their_dimension() -> None:
    torch.manual_seed(0)
    alone = torch.nn.Linear(3, 2).double()
    whole = torch.randn(4, ranks() * (ranks() + 1) // 2, 3, dtype=torch.float64)
    part = whole.split([other + 1 for other in range(ranks())], 1)[rank()]
    model = anyrig.spread(copy.deepcopy(alone).to(device()), dim=1)
    model(part).square().mean().backward()
    alone(whole).square().mean().backward()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), expected.grad, rtol=1e-9, atol=0)


def case_a_last_batch_too_small_for_all() -> None:
    loader = anyrig.distribute(DataLoader(numbers(2 * ranks() + 1), batch_size=2 * ranks()))
    last = list(loader)[-1]
    assert [len(part) for part in last] == ([1, 1] if rank() == 0 else [0, 0])
    assert [part.dtype for part in last] == [torch.float64, torch.int64]
    given = DataLoader(numbers(1), collate_fn=lambda samples: samples[0][0].new_ones(3, 2))
    with pytest.raises(BatchError, match="empty=function") if rank() else redirect_stdout(None):
        list(anyrig.distribute(given))
    list(anyrig.distribute(given, empty=lambda: torch.ones(0)))


def case_workers_and_prefetching() -> None:
    given = DataLoader(
        numbers(23), 5, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=3
    )
    loader = anyrig.prefetch(anyrig.distribute(given, shares=[2, 1, 1][: ranks()]), device())
    assert (len(loader), loader.batch_size, loader.num_workers) == (5, 5, 2)
    epochs = [global_order(loader) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(23))] * 2
    assert epochs[0] != epochs[1]


class Augmented(Dataset[torch.Tensor]):
    """Draws new values for each sample, as random augmentation does."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand((), dtype=torch.float64)

    def __len__(self) -> int:
        return 4 * ranks()


def case_workers_of_no_two_ranks_and_epochs_draw_the_same() -> None:
    loader = anyrig.distribute(DataLoader(Augmented(), 2 * ranks(), num_workers=1), seed=3)
    epochs = [anyrig.gather_over_ranks(torch.cat(list(loader))) for _ in range(2)]
    assert len(torch.cat(epochs).unique()) == 8 * ranks()
    loader.set_epoch(1)
    assert torch.equal(anyrig.gather_over_ranks(torch.cat(list(loader))), epochs[1])


class Shuffled(Sampler[int]):
    """Draws from Python's own generator, batch by batch."""

    def __init__(self, own: random.Random | None = None) -> None:
        self.random: Any = own or random

    def __iter__(self) -> Iterator[int]:
        for start in range(0, 20, 4):
            yield from self.random.sample(range(start, start + 4), 4)


def case_a_sampler_of_the_program_s_own() -> None:
    random.seed(rank())
    loader = anyrig.distribute(DataLoader(numbers(20), batch_size=6, sampler=Shuffled()))
    seen = [y for _, y in zip(loader, range(1), strict=False)]  # left before its end
    assert len(seen) == 1
    found = []
    for (_, y), _ in zip(loader, range(100), strict=False):
        random.random()
        found.append(y)
    assert sorted(anyrig.gather_over_ranks(torch.cat(found)).tolist()) == list(range(20))


def case_samplers_that_do_not_agree() -> None:
    given = DataLoader(numbers(20), batch_size=6, sampler=Shuffled(random.Random(rank())))
    loader = anyrig.distribute(given, shares="even")
    if rank() == 0:
        list(loader)
        return
    with pytest.raises(
        RankMismatchError, match=rf"sampler of rank {rank()} begins with \[.*rank 0 w"
    ):
        list(loader)


def case_subsets_that_do_not_agree() -> None:
    part = range(rank(), 6 * ranks(), ranks())
    given = DataLoader(Subset(numbers(6 * ranks()), part), batch_size=3)
    loader = anyrig.distribute(given, timeout_seconds=20)
    if rank() == 0:
        list(loader)
        return
    with pytest.raises(
        RankMismatchError, match=rf"rank {rank()} begins with \[{rank()}, .*the whole data on every"
    ):
        list(loader)


def case_a_loader_that_is_divided_already() -> None:
    sampler = DistributedSampler(numbers(6))
    for given in (
        DataLoader(numbers(6), batch_size=2, sampler=sampler),
        DataLoader(numbers(6), batch_sampler=BatchSampler(sampler, 2, False)),
    ):
        with pytest.raises(BatchError, match="divided already, by its DistributedSampler"):
            anyrig.distribute(given)


class Stream(IterableDataset[Any]):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return ((float(i), f"name {i}") for i in range(self.rows))


def case_a_stream_is_divided_by_rows() -> None:
    loader = anyrig.distribute(DataLoader(Stream(3 * ranks() + 1), batch_size=3))
    for _ in range(2):
        values, names = zip(*loader, strict=True)
        mine = [name for batch in names for name in batch]
        found = anyrig.gather_over_ranks((torch.cat(values), mine), loader=loader)
        assert found[0].tolist() == list(map(float, range(3 * ranks() + 1)))
        assert found[1] == [f"name {i}" for i in range(3 * ranks() + 1)]
    with pytest.raises(TypeError):
        len(loader)


class DividedStream(Stream):
    """Divides itself among the ranks, as data sets for several GPUs do."""

    def __iter__(self) -> Iterator[Any]:
        return islice(super().__iter__(), rank(), None, ranks())


def case_a_stream_that_divides_itself() -> None:
    samples = 6 * ranks()
    given = DataLoader(DividedStream(samples), batch_size=2)
    refused = anyrig.distribute(given, timeout_seconds=20)
    if rank():
        with pytest.raises(
            RankMismatchError, match=rf"rank {rank()} begins with a diff.* divided=True\); else"
        ):
            list(refused)
    else:
        assert len(next(iter(refused))[0])
    loader = anyrig.distribute(given, divided=True)
    mine = [float(value) for values, _ in loader for value in values]
    every = [value for of_rank in anyrig.gather_over_ranks([mine]) for value in of_rank]
    assert sorted(every) == list(map(float, range(samples)))


def case_streams_with_other_values_of_the_same_samples() -> None:
    given = [torch.full((2 * ranks(), 1), float(rank()))] * 2  # like random augmentation
    loader = anyrig.distribute(given, divided=False)
    assert [batch.tolist() for batch in loader] == [[[rank()]] * 2] * 2


def case_streams_that_end_apart_would_lose_samples() -> None:
    given = DataLoader(Stream(6 if rank() == ranks() - 1 else 8), batch_size=2)
    loader = iter(anyrig.distribute(given, timeout_seconds=20))
    for _ in range(3):
        next(loader)
    if rank() == ranks() - 1:
        with pytest.raises(RankMismatchError, match="ended after 3 global batches, but another"):
            next(loader)
    else:
        next(loader)
    with pytest.raises(RankMismatchError, match=r"of 3 batches, but rank 1 has one of 4\. Give"):
        anyrig.distribute(DataLoader(numbers(3 + min(rank(), 1))))


def case_no_rank_has_a_single_sample_of_several() -> None:
    parts = {}
    for rows in range(1, 11):
        given = DataLoader(numbers(rows), batch_size=10)
        for shares in ("even", [8, 1, 1][: ranks()]):
            loader = anyrig.distribute(given, shares=shares)
            mine = [len(x) for x, _ in loader]
            assert mine == [loader.samples_of_batches[0][rank()]]
            assert anyrig.gather_over_ranks(mine[0]) == list(loader.samples_of_batches[0])
            parts[rows] = loader.samples_of_batches[0]
            assert rows == 1 or 1 not in parts[rows]
    assert parts[10] == {2: (10, 0), 3: (8, 2, 0)}[ranks()]
    # A batch of one sample for each rank allows single samples, and so does singles=True.
    for batch, singles in ((ranks(), None), (2 * ranks() - 1, True)):
        loader = anyrig.distribute(DataLoader(numbers(batch), batch), singles=singles)
        list(loader)
        assert 1 in loader.samples_of_batches[0]


def case_batch_normalization_trains_on_every_last_batch() -> None:
    net = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    model = anyrig.spread(net.to(device()))
    for rows in range(2, 11):
        given = DataLoader(numbers(10 + rows), batch_size=10)
        for x, _ in anyrig.distribute(given, shares=[8, 1, 1][: ranks()]):
            model(x[:, None]).square().mean().backward()


def case_a_single_sample_is_explained() -> None:
    # A rank with a single sample raises before it exchanges anything with the others.
    model = anyrig.spread(nn.Sequential(nn.BatchNorm1d(4)).to(device(), torch.float64))
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        model(torch.ones(1, 4, dtype=torch.float64))
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "plan=Replicas(sync_batch_norm=True)" in text
    assert "drop_last=True" in text


def case_loaders_that_came_divided_and_end_apart() -> None:
    mine = [torch.full((2, 3), float(rank()))] * (0, 4, 2)[rank()]
    loader = anyrig.distribute(mine, divided=True)
    assert len(loader) == 4
    for _ in range(3):  # iterations follow each other without a wait
        rows = [len(batch) for batch in loader]
        assert rows == [2] * len(mine) + [0] * (4 - len(mine))
    assert loader.shares is None
    assert all(batch.shape[1:] == (3,) for batch in loader)


def case_ranks_that_distribute_different_things() -> None:
    given: Any = DataLoader(numbers(4)) if rank() else [torch.ones(1)]
    with pytest.raises(RankMismatchError, match=r"rank 0 .* without indices, but rank 1 has one"):
        anyrig.distribute(given)
    with pytest.raises(SharesError, match=f"7 shares for {ranks()} devices"):
        anyrig.distribute(DataLoader(numbers(4)), shares=[1] * 7)
    with pytest.raises(SharesError, match="shares='best' is not a way to share a batch"):
        anyrig.distribute(DataLoader(numbers(4)), shares="best")
