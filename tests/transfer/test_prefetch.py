"""The parts that need no accelerator: the CPU, and meta, which has no streams, like mps."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from anyrig.devices.device import Device
from anyrig.devices.rig import Rig
from anyrig.errors import MoveError
from anyrig.transfer import prefetch

CPU = Rig((Device("cpu", None, "a CPU"),))


def make_loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(10.0), torch.arange(10)), batch_size=4)


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(1)


@pytest.mark.parametrize("rig", [CPU, CPU.lead, "cpu", "cpu:0", torch.device("cpu")])
def test_on_the_cpu_it_is_the_loader_itself(rig: Any) -> None:
    loader = make_loader()
    assert prefetch(loader, rig) is loader


def test_batches_arrive_on_the_device_as_often_as_they_are_asked_for() -> None:
    batches = prefetch(make_loader(), "meta")
    for _ in range(2):
        shapes = [(x.device.type, x.shape[0], y.device.type) for x, y in batches]
        assert shapes == [("meta", 4, "meta"), ("meta", 4, "meta"), ("meta", 2, "meta")]


def test_length_and_attributes_are_the_loaders() -> None:
    loader = make_loader()
    batches = prefetch(loader, "meta")
    assert len(batches) == 3
    assert batches.dataset is loader.dataset
    assert batches.batch_sampler is loader.batch_sampler
    batches.note = "epoch 3"
    assert loader.note == "epoch 3"
    with pytest.raises(AttributeError, match=r"DataLoader.*no_such"):
        batches.no_such  # noqa: B018
    assert repr(batches) == f"prefetch({loader!r}, 'meta', depth=2)"


def test_no_length_where_the_loader_has_none() -> None:
    batches = prefetch((torch.ones(1) for _ in range(3)), "meta")
    assert not hasattr(batches, "__len__")
    with pytest.raises(TypeError, match="no len"):
        len(batches)  # type: ignore[arg-type]
    assert sum(1 for _ in batches) == 3

    endless = prefetch(DataLoader(Endless()), "meta")
    with pytest.raises(TypeError, match="Endless"):
        len(endless)


def test_loader_that_is_only_indexed() -> None:
    class Indexed:
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 2:
                raise IndexError
            return torch.ones(1)

    assert [x.is_meta for x in prefetch(Indexed(), "meta")] == [True, True]  # type: ignore[type-var]


def test_batches_without_tensors_pass() -> None:
    assert list(prefetch([None, ["a", "b"], 3], "meta")) == [None, ["a", "b"], 3]


def test_a_batch_that_cannot_be_moved_is_refused_in_its_place() -> None:
    batches = iter(prefetch([torch.ones(1), SimpleNamespace(x=torch.ones(1))], "meta"))
    assert next(batches).is_meta
    with pytest.raises(MoveError, match="SimpleNamespace at the value"):
        next(batches)


def test_devices_without_streams_need_no_thread() -> None:
    batches = iter(prefetch(make_loader(), "meta"))
    next(batches)
    assert not [t for t in threading.enumerate() if t.name.startswith("anyrig-prefetch")]


@pytest.mark.parametrize("depth", [0, -1])
def test_depth(depth: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1; got {depth}"):
        prefetch(make_loader(), "cpu", depth=depth)


def test_what_cannot_be_iterated_over() -> None:
    with pytest.raises(MoveError, match="cannot prefetch from Linear"):
        prefetch(torch.nn.Linear(1, 1), "cpu")  # type: ignore[type-var]


@pytest.mark.parametrize("sized", [True, False])
def test_copies_prefetch_too(sized: bool) -> None:
    class Loader:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter([torch.ones(2), torch.ones(1)])

        def __deepcopy__(self, memo: object) -> Loader:
            return Loader()

    loader: Any = make_loader() if sized else Loader()
    batches = prefetch(loader, "meta", depth=5, timeout_seconds=7)
    shallow, deep = copy.copy(batches), copy.deepcopy(batches)
    for twin in (shallow, deep):
        assert type(twin) is type(batches)
        assert repr(twin).endswith(", 'meta', depth=5)")
        assert twin._timeout_seconds == 7
        assert len(list(twin)) == (3 if sized else 2)
        assert hasattr(twin, "__len__") == sized
    assert shallow._loader is loader
    assert type(deep._loader) is type(loader)
    assert deep._loader is not loader


def test_a_pickled_loader_prefetches() -> None:
    again = pickle.loads(pickle.dumps(prefetch(make_loader(), "meta")))
    assert [x.device.type for x, _ in again] == ["meta"] * 3
