"""Outputs of any class: joined as one device returns them, or refused by the name of the class."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from batch_classes import Entries, Frozen, Graphs, Hidden, Instances, MovableFields, Slotted
from torch import Tensor, nn
from trained_models import first_devices

import anyrig
from anyrig.errors import AnyrigError, BatchError
from anyrig.parallel.parts.objects import notion_of

pytestmark = pytest.mark.gpus(2)


class Pair(NamedTuple):
    x: Any
    w: Any


class Returning(nn.Module):
    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3, dtype=torch.float64)
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.linear(x))


def assert_returned_alike(
    make: Callable[[Tensor], Any], read: Callable[[Any], Tensor], samples: int
) -> Any:
    """Compare what is read of the output, and its gradients, with one device's."""
    module = Returning(make)
    one, x = copy.deepcopy(module), torch.randn(samples, 6, dtype=torch.float64)
    expected = read(one(x))
    expected.square().sum().backward()
    output = anyrig.spread(module.to("cuda:0"), first_devices(2))(x)
    assert type(output) is type(one(x))
    found = read(output)
    found.square().sum().backward()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=0)
    gradient = module.linear.weight.grad
    assert gradient is not None
    torch.testing.assert_close(gradient.cpu(), one.linear.weight.grad, rtol=1e-9, atol=1e-12)
    return output


FIELDS: dict[str, Callable[[Any, Any], Any]] = {
    "frozen dataclass": Frozen,
    "dataclass with to": MovableFields,
    "attrs, frozen, with slots": Slotted,
    "named tuple": Pair,
}


@pytest.mark.parametrize("samples", [5, 4])
@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_joined(name: str, samples: int) -> None:
    kind = FIELDS[name]
    assert_returned_alike(lambda y: kind(y.mean(), y), lambda o: o.x, samples)
    assert_returned_alike(lambda y: kind(y.mean(), y), lambda o: o.w, samples)
    assert_returned_alike(lambda y: {"a": [kind(y, 1)]}, lambda o: o["a"][0].x, samples)


@pytest.mark.parametrize("samples", [5, 4])
def test_objects_are_joined_by_their_own_notion(samples: int) -> None:
    def graphs(y: Tensor) -> Graphs:
        return Graphs(y, y[:, 0], [1] * len(y))

    assert_returned_alike(lambda y: Instances(y, y[:, 0]), lambda o: o.x, samples)
    assert_returned_alike(graphs, lambda o: o.pooled(), samples)
    assert_returned_alike(lambda y: Entries({"y": y}, [len(y)]), lambda o: o["y"], samples)
    assert_returned_alike(lambda y: Entries({"y": y, "m": y.mean()}, []), lambda o: o["m"], samples)
    returning = Returning(lambda y: Instances(y[:1], y[:1])).to("cuda:0")
    model = anyrig.spread(returning, first_devices(2))
    with pytest.raises(BatchError, match=r"each Instances there has 1, 1 samples .* have 3, 2"):
        model(torch.randn(5, 6, dtype=torch.float64))


@pytest.mark.parametrize("samples", [5, 4])
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_with_an_entry_for_each_sample_is_joined(kind: Any, samples: int) -> None:
    def stack(entries: Any) -> Tensor:
        return torch.stack(list(entries))

    def boxes(y: Tensor) -> Any:  # as torchvision's detection models return them
        return kind({"boxes": row.expand(1 + i, 3)} for i, row in enumerate(y))

    assert_returned_alike(lambda y: kind(y), stack, samples)
    assert_returned_alike(lambda y: {"rows": kind(y)}, lambda o: stack(o["rows"]), samples)
    assert_returned_alike(
        lambda y: kind({"v": row} for row in y), lambda o: stack(e["v"] for e in o), samples
    )
    assert len(anyrig.spread(Returning(boxes).to("cuda:0"))(torch.ones(samples, 6).double())) == (
        samples
    )
    output = assert_returned_alike(
        lambda y: (y, kind(f"{value:.9f}" for value in y[:, 0].tolist())), lambda o: o[0], samples
    )
    assert output[1] == kind(f"{value:.9f}" for value in output[0][:, 0].tolist())
    # As many outputs as a part has samples are not samples.
    assert_returned_alike(lambda y: (y, y.mean()), lambda o: o[1], 4)
    assert_returned_alike(lambda y: [y, y * 2], lambda o: o[1], 4)


@pytest.mark.parametrize("samples", [5, 4])
def test_containers_are_joined(samples: int) -> None:
    assert_returned_alike(lambda y: {y.mean()}, lambda o: next(iter(o)), samples)
    assert_returned_alike(lambda y: frozenset([y]), lambda o: next(iter(o)), samples)
    for kind in (UserDict, OrderedDict, MappingProxyType):
        assert_returned_alike(lambda y, kind=kind: kind({"y": y}), lambda o: o["y"], samples)
    assert_returned_alike(lambda y: deque([y, y.mean(), 1]), lambda o: o[1], samples)


@pytest.mark.parametrize("samples", [5, 4, 2])
def test_arrays_are_joined_as_tensors_are(samples: int) -> None:
    def make(y: Tensor) -> Any:
        array = y.detach().cpu().numpy()
        return {"y": y, "array": array, "mean": array.mean(), "signs": numpy.sign(array[:, 0] * 0)}

    output = assert_returned_alike(make, lambda o: o["y"], samples)
    expected = output["y"].detach().cpu().numpy()
    assert numpy.array_equal(output["array"], expected)
    assert numpy.isclose(output["mean"], expected.mean())
    assert output["signs"].shape == (samples,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda y: Hidden(y, y), "it is a Hidden, and nothing says how its tensors are joined"),
        (lambda y: SimpleNamespace(loss=y.mean()), "it is a SimpleNamespace, and"),
        (lambda y: torch.distributions.Normal(y, 1.0), "it is a Normal, and"),
        (lambda y: (row for row in y), "a generator yields its values later"),
        (lambda y: {"rows": map(torch.sum, y)}, r"\['rows'\]: a map yields"),
        (lambda y: {y, y.mean()}, "a set has no order"),
        (lambda y: {f"{y[0, 0].item()}", "a"}, "a set has no order"),
    ],
)
def test_what_cannot_be_joined_is_refused_by_name(make: Any, message: str) -> None:
    model = anyrig.spread(Returning(make).to("cuda:0"), first_devices(2))
    with pytest.raises(BatchError, match=message):
        model(torch.randn(5, 6, dtype=torch.float64))


def test_an_object_that_the_replicas_share_is_refused() -> None:
    shared = Hidden(None, None)

    def make(y: Tensor) -> Any:
        shared.x = y
        return {"y": y, "shared": shared}

    model = anyrig.spread(Returning(make).to("cuda:0"), first_devices(2))
    with pytest.raises(BatchError, match="it is a Hidden, which the replicas share, and"):
        model(torch.randn(5, 6, dtype=torch.float64))


def test_other_objects_come_as_a_list_that_says_what_it_is() -> None:
    returning = Returning(lambda y: {"y": y, "cache": Hidden(y, y)}).to("cuda:0")
    model = anyrig.spread(returning, first_devices(2))
    output = model(torch.randn(5, 6, dtype=torch.float64))
    assert isinstance(output["cache"], list)
    assert [len(part.x) for part in output["cache"]] == [3, 2]
    assert not hasattr(output["cache"], "loss")
    with pytest.raises(AnyrigError, match=r"\['cache'\] .* a Hidden for each part, .* no 'x'"):
        output["cache"].x.mean()


def test_outputs_that_contain_themselves_are_refused() -> None:
    def make(y: Tensor) -> Any:
        output: dict[str, Any] = {"y": y}
        output["self"] = output
        return output

    model = anyrig.spread(Returning(make).to("cuda:0"), first_devices(2))
    with pytest.raises(BatchError, match="the dict there contains itself"):
        model(torch.randn(5, 6, dtype=torch.float64))


def test_the_advice_on_packed_sequences_is_given_where_they_are() -> None:
    def longer(y: Tensor) -> Tensor:
        return y.new_ones(len(y), 3 + int(len(y) == 3))

    x = torch.randn(5, 6, dtype=torch.float64)
    with pytest.raises(BatchError, match=r"only the dimension of the samples may") as refusal:
        anyrig.spread(Returning(longer).to("cuda:0"), first_devices(2))(x)
    assert "pad_packed_sequence" not in str(refusal.value)
    module = Returning(longer)
    module.recurrent = nn.LSTM(2, 2)
    with pytest.raises(BatchError, match="pad_packed_sequence"):
        anyrig.spread(module.to("cuda:0"), first_devices(2))(x)


def test_outputs_of_tensordict() -> None:
    tensordict = pytest.importorskip("tensordict", reason="tensordict is not installed")
    for samples in (5, 4):
        assert_returned_alike(
            lambda y: tensordict.TensorDict({"y": y}, [len(y)]), lambda o: o["y"], samples
        )
        assert_returned_alike(
            lambda y: tensordict.TensorDict({"y": y, "m": y.mean()}, []), lambda o: o["m"], samples
        )


class CacheWithoutEntries:
    """Lacks what a property of its class returns, like an empty cache of transformers."""

    @property
    def batch_size(self) -> int:
        return len(self.entries)  # type: ignore[attr-defined]


def test_an_output_whose_property_raises_is_no_batch() -> None:
    assert notion_of(CacheWithoutEntries()) is None
