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
from numbered_samples import numbers, order
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler

import anyrig
from anyrig.errors import BatchError
from anyrig.parallel.ranks.loaders.agreed_order import draw_alike
from anyrig.parallel.ranks.loaders.given_loader import global_batches_of


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
