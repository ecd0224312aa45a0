"""Batches of any class: divided and moved as on one device, or refused by the name of the class."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from batch_classes import (
    Entries,
    Frozen,
    Graphs,
    Hidden,
    Instances,
    Movable,
    MovableFields,
    Slotted,
    WithoutSlices,
)
from torch import Tensor, nn
from trained_models import first_devices

import anyrig
from anyrig.errors import AnyrigError, BatchError, MoveError
from anyrig.parallel.parts.samples import count_arguments
from anyrig.parallel.parts.scatter import scatter

SAMPLES = 5


class Pair(NamedTuple):
    x: Any
    w: Any


class Reading(nn.Module):
    """Reads its arguments in a given way, and returns a mean over samples."""

    def __init__(self, read: Callable[..., Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2, dtype=torch.float64)
        self.read = read

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        return self.linear(self.read(*inputs, **named)).square().mean()


def by_weight(x: Tensor, w: Any) -> Tensor:
    """Divide by one number for each sample; a list that is not divided does not fit."""
    if isinstance(w, Tensor):
        return x / w[:, None]
    numbers = [float(each) for each in w]
    assert len(numbers) == len(x)
    return x / x.new_tensor(numbers)[:, None]


def of_fields(batch: Any) -> Tensor:
    assert batch.x.device == batch.w.device
    return by_weight(batch.x, batch.w)


def of_keys(batch: Any) -> Tensor:
    return by_weight(batch["x"], batch["w"])


def assert_trained_alike(
    read: Callable[..., Tensor], *inputs: Any, devices: int = 2, **named: Any
) -> None:
    """Compare loss and gradients on several devices with one device's, given the same arguments."""
    module = Reading(read)
    one = copy.deepcopy(module)
    expected = one(*inputs, **{name: named[name] for name in named if name != "samples"})
    expected.backward()
    model = anyrig.spread(module.to("cuda:0"), first_devices(devices))
    found = model(*inputs, **named)
    found.backward()
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=0)
    gradient = module.linear.weight.grad
    assert gradient is not None
    torch.testing.assert_close(gradient.cpu(), one.linear.weight.grad, rtol=1e-9, atol=1e-12)


def x_and_w() -> tuple[Tensor, Tensor]:
    return (
        torch.randn(SAMPLES, 6, dtype=torch.float64),
        torch.rand(SAMPLES, dtype=torch.float64) + 1,
    )


def graphs() -> Graphs:
    sizes = [2, 3, 1, 4]
    return Graphs(
        torch.randn(sum(sizes), 6, dtype=torch.float64), torch.ones(4, dtype=torch.float64), sizes
    )


OBJECTS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[..., Tensor]]] = {
    "frozen dataclass": (Frozen, of_fields),
    "dataclass with to": (MovableFields, of_fields),
    "attrs, frozen, with slots": (Slotted, of_fields),
    "named tuple": (Pair, of_fields),
    "length and slices": (Instances, of_fields),
    "batch size": (lambda x, w: Entries({"x": x, "w": w}, [len(x)]), of_keys),
    "UserDict": (lambda x, w: UserDict(x=x, w=w), of_keys),
    "OrderedDict": (lambda x, w: OrderedDict(x=x, w=w), of_keys),
    "mappingproxy": (lambda x, w: MappingProxyType({"x": x, "w": w}), of_keys),
    "list of different things": (lambda x, w: [x, w], lambda batch: by_weight(*batch)),
    "object in a dict": (lambda x, w: {"b": Instances(x, w)}, lambda b: of_fields(b["b"])),
}


@pytest.mark.gpus(2)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_with_samples_is_divided_and_moved(name: str, devices: int) -> None:
    make, read = OBJECTS[name]
    assert_trained_alike(read, make(*x_and_w()), devices=devices)


@pytest.mark.gpus(2)
def test_a_batch_size_is_divided_along_the_dimension_of_the_samples() -> None:
    x = torch.arange(10).reshape(2, SAMPLES)
    parts = scatter(Entries({"x": x}, x.shape), ["cuda:0", "cuda:1"], dim=1)
    assert [tuple(part.batch_size) for part in parts] == [(2, 3), (2, 2)]
    assert torch.equal(torch.cat([part["x"].cpu() for part in parts], 1), x)


@pytest.mark.gpus(2)
@pytest.mark.parametrize("devices", [1, 2])
def test_graphs_are_divided_by_graphs_and_stay_where_they_were(devices: int) -> None:
    batch = graphs()
    assert_trained_alike(lambda batch: batch.pooled(), batch, devices=devices)
    assert batch.x.device.type == "cpu"


@pytest.mark.gpus(2)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Hidden, r"argument 0 is a Hidden that cannot be divided: it has a tensor of shape "
         r"\(5, 6\) in \.x, but nothing says which samples"),
        (Movable, r"argument 0 is a Movable .*in \.x.*give it `to\(device\)`, `__len__`"),
        (WithoutSlices, r"WithoutSlices that cannot be divided: .*\(TypeError: no slices\)"),
        (lambda x, w: SimpleNamespace(x=x, w=w), "argument 0 is a SimpleNamespace .*in .x"),
        (lambda x, w: Hidden([{"deep": x}], w), r"in \.w"),
        (lambda x, w: torch.distributions.Normal(x, w[:, None]), r"is a Normal .*in \.loc"),
        (lambda x, w: (each for each in x), "argument 0 is a generator, which yields its values"),
        (lambda x, w: nn.Linear(6, 1), "argument 0 is a module, Linear, whose weight is on cpu"),
        (lambda x, w: Entries({"x": x}, []), r"argument 0 \(a Entries\) cannot be divided along"),
    ],
)  # fmt: skip
def test_an_object_without_samples_is_refused_by_name(make: Any, message: str) -> None:
    model = anyrig.spread(Reading(lambda batch: batch.x).to("cuda:0"), first_devices(2))
    with pytest.raises(BatchError, match=message):
        model(make(*x_and_w()))


@pytest.mark.gpus(1)
def test_on_one_device_no_tensor_stays_elsewhere() -> None:
    x, w = x_and_w()
    model = anyrig.spread(Reading(of_fields).to("cuda:0"), "cuda:0")
    model(Movable(x, w)).backward()
    message = r"argument 0 is a Hidden with a tensor on cpu in \.x, where the module on cuda:0"
    with pytest.raises(MoveError, match=message):
        model(Hidden(x, w))
    there = Hidden(x.to("cuda:0"), w.to("cuda:0"))
    seen: list[Any] = []
    model.read = lambda batch: (seen.append(batch), of_fields(batch))[1]
    model(there)
    assert seen[0] is there


@pytest.mark.gpus(2)
def test_objects_without_tensors_are_passed_on() -> None:
    x, _ = x_and_w()
    options = SimpleNamespace(scale=2.0, names={"a": [1, 2]})
    assert_trained_alike(lambda x, o: x * o.scale, x, options)
    assert_trained_alike(lambda x, f: f(x), x, torch.sin)


@pytest.mark.gpus(2)
@pytest.mark.parametrize(
    "entries",
    [
        list,
        lambda w: [str(each) for each in w.tolist()],
        lambda w: tuple(map(str, w.tolist())),
        lambda w: list(w.numpy()),
        lambda w: [each.numpy() for each in w],
        lambda w: w.numpy(),
        lambda w: deque(w.tolist(), maxlen=9),
        lambda w: UserList(w.tolist()),
        lambda w: range(1, 1 + SAMPLES),
        lambda w: w.tolist(),
    ],
)
def test_entries_beside_a_tensor_are_divided_like_it(entries: Callable[[Tensor], Any]) -> None:
    x, w = x_and_w()
    assert_trained_alike(by_weight, x, entries(w))
    assert_trained_alike(of_keys, {"x": x, "w": entries(w)})
    assert_trained_alike(by_weight, x[:1], w.tolist()[:1])


@pytest.mark.gpus(2)
def test_settings_are_passed_whole() -> None:
    x, _ = x_and_w()
    assert_trained_alike(lambda x, s: x * s[1], x, (2, 3))
    assert_trained_alike(lambda x, s: x * s[1], x, [2.0, 3.0, 4.0])
    assert_trained_alike(lambda x, s: x * s[1], x, numpy.array([2.0, 3.0, 4.0]))
    assert_trained_alike(lambda x, s: x * len(s), x, x.shape)


@pytest.mark.gpus(2)
@pytest.mark.parametrize(
    ("arguments", "read", "message"),
    [
        (lambda x, w: (x, (3,) * SAMPLES), lambda x, s: x * s[4], "a tuple of 5 int objects"),
        (lambda x, w: ([x, 2 * x],), lambda xs: xs[0] + xs[1], "list of 2 tensors of size 5"),
        (lambda x, w: (list(x[:4, None]),), lambda xs: torch.cat(xs), "samples=4"),
        (lambda x, w: (x[:2], (x[:2], w[:2, None].expand(2, 6))), lambda x, s: x + s[1],
         "tuple of 2 tensors, and all tensors in it have size 2"),
    ],
)  # fmt: skip
def test_one_device_computes_what_may_be_read_in_two_ways(
    arguments: Any, read: Any, message: str
) -> None:
    """The numbers are right, and a warning says how to divide the batch."""
    with pytest.warns(UserWarning, match=f"{message}.*The first device computes this batch alone"):
        assert_trained_alike(read, *arguments(*x_and_w()))


@pytest.mark.gpus(2)
def test_samples_says_what_a_list_has() -> None:
    x, _ = x_and_w()
    bags = [torch.randn(6, 6, dtype=torch.float64) for _ in range(4)]
    assert_trained_alike(lambda bags: torch.stack([b.amax(0) for b in bags]), bags, samples=4)
    assert_trained_alike(lambda xs: xs[0] + xs[1], [x, x], samples=SAMPLES)
    uneven = [torch.randn(3 + i, 6, dtype=torch.float64) for i in range(4)]
    assert_trained_alike(lambda bags: torch.stack([b.amax(0) for b in bags]), uneven)
    model = anyrig.spread(Reading(torch.cat).to("cuda:0"), first_devices(2))
    for wrong in (-1, True, 2.0):
        with pytest.raises(BatchError, match=f"samples={wrong} is not a number of samples"):
            model(bags, samples=wrong)
    with pytest.raises(BatchError, match="samples=7 was given, but the arguments have 6"):
        model(bags, samples=7)


@pytest.mark.gpus(2)
def test_a_list_of_objects_of_one_class_has_a_sample_in_each() -> None:
    objects = [Instances(torch.randn(3, 6, dtype=torch.float64), torch.ones(3)) for _ in range(5)]
    assert_trained_alike(lambda given: torch.stack([o.x.sum(0) for o in given]), objects)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ((torch.ones(5, 2), torch.ones(5)), 5),
        ((Entries({"x": torch.ones(5, 2)}, [5]),), 5),
        ((graphs(),), 4),
        ((Instances(torch.ones(5, 2), torch.ones(5)), "text"), 5),
        ((Frozen(torch.ones(5, 2), ["a"] * 5),), 5),
        (({"x": torch.ones(5), "n": 3},), 5),
        (([{"a": 1}, {"a": 2}],), 2),
        (([torch.ones(3, 8), torch.ones(4, 8)],), 2),
        ((torch.ones(3, 2), (1, 2, 3)), 3),  # whatever the tuple is
        (("text", 3, None), None),
    ],
)
def test_samples_are_counted_by_the_batchs_own_notion(inputs: Any, expected: int | None) -> None:
    assert count_arguments(inputs, {}, 0) == expected


@pytest.mark.parametrize(
    "inputs",
    [
        (torch.ones(5, 2), torch.ones(3, 3)),
        ([torch.ones(5), torch.ones(5)],),
        (graphs(), torch.ones(10)),
    ],
)
def test_an_unclear_count_is_refused(inputs: Any) -> None:
    with pytest.raises(BatchError, match="samples="):
        count_arguments(inputs, {}, 0)


@pytest.mark.gpus(2)
def test_batches_of_tensordict() -> None:
    tensordict = pytest.importorskip("tensordict", reason="tensordict is not installed")
    x, w = x_and_w()
    for devices in (1, 2):
        given = tensordict.TensorDict({"x": x, "w": w, "text": "t"}, [SAMPLES])
        assert_trained_alike(of_keys, given, devices=devices)
    assert count_arguments((given,), {}, 0) == SAMPLES


@pytest.mark.gpus(2)
def test_batches_of_attrs() -> None:
    attrs = pytest.importorskip("attrs", reason="attrs is not installed")
    x, w = x_and_w()
    for options in ({"slots": True}, {"frozen": True}, {"slots": True, "frozen": True}):
        kind = attrs.make_class("Batch", ["x", "w"], **options)
        for devices in (1, 2):
            assert_trained_alike(of_fields, kind(x, w), devices=devices)


@pytest.mark.gpus(2)
def test_batches_of_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    kind = pydantic.create_model("Batch", __config__=config, x=(Tensor, ...), w=(Tensor, ...))
    x, w = x_and_w()
    for devices in (1, 2):
        assert_trained_alike(of_fields, kind(x=x, w=w), devices=devices)


@pytest.mark.gpus(2)
def test_batches_of_pytorch_geometric() -> None:
    data = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    graphs = [
        data.Data(x=torch.randn(n, 6, dtype=torch.float64), edge_index=torch.zeros(2, n).long())
        for n in (2, 3, 4, 1)
    ]

    def pool(batch: Any) -> Tensor:
        zeros = batch.x.new_zeros(batch.num_graphs, 6)
        return zeros.index_add(0, batch.batch, batch.x)

    for devices in (1, 2):
        assert_trained_alike(pool, data.Batch.from_data_list(graphs), devices=devices)
    assert_trained_alike(lambda given: torch.stack([g.x.sum(0) for g in given]), graphs)
    model = anyrig.spread(Reading(pool).to("cuda:0"), first_devices(2))
    with pytest.raises(AnyrigError, match="argument 0 is a Data that cannot be divided"):
        model(graphs[0])
