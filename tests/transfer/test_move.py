"""Moves that need no accelerator: to the meta device, which is another device than the CPU."""

from __future__ import annotations

import enum
import io
import itertools
from collections import UserDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anyrig.devices.device import Device
from anyrig.errors import DeviceTextError, MoveError
from anyrig.transfer import move
from anyrig.transfer.unreachable import refuse_unreachable


class Sample:
    """An object of a custom class, moved by its own method."""

    def __init__(self) -> None:
        self.x = torch.ones(2)
        self.calls: list[dict[str, Any]] = []

    def to(self, device: Any) -> Sample:
        moved = Sample()
        moved.x = self.x.to(device)
        moved.calls = [*self.calls, {"device": device}]
        return moved


class NonBlockingSample(Sample):
    def to(self, device: Any, non_blocking: bool = False) -> Sample:
        moved = super().to(device)
        moved.calls[-1]["non_blocking"] = non_blocking
        return moved


class InPlaceSample(Sample):
    def to(self, device: Any, **options: Any) -> None:
        self.x = self.x.to(device)
        self.calls.append(options)


class Encoding(UserDict):
    """A batch as tokenizers return it: items in `data`, and a `to` that changes it in place."""

    def to(self, device: Any) -> Encoding:
        self.data = {key: value.to(device) for key, value in self.items()}
        return self


def test_nested_batch() -> None:
    x = torch.ones(2)
    moved = move({"x": x, "meta": ("id", 7, None), "parts": [x]}, "meta")
    assert moved["x"].is_meta
    assert moved["x"] is moved["parts"][0]
    assert moved["meta"] == ("id", 7, None)


@pytest.mark.parametrize("device", ["meta", torch.device("meta"), Device("meta", None, "none")])
def test_every_spelling_of_a_device(device: Any) -> None:
    assert move(torch.ones(1), device).is_meta


def test_wrong_device_text() -> None:
    with pytest.raises(DeviceTextError, match="gpu0"):
        move(torch.ones(1), "gpu0")


def test_what_is_there_already_is_returned_as_itself() -> None:
    x = torch.ones(1)
    assert move(x, "cpu") is x
    assert move(x, "cpu:0") is x
    batch = {"x": x}
    assert move(batch, "cpu") is batch


def test_module_is_moved_in_place_and_returned() -> None:
    module = torch.nn.BatchNorm1d(2)
    assert move(module, "meta") is module
    assert module.weight.is_meta
    assert module.running_mean.is_meta


@pytest.mark.parametrize("module_first", [True, False])
def test_tensors_of_a_module_stay_the_modules_own(module_first: bool) -> None:
    module = torch.nn.BatchNorm1d(2)
    entries = [
        ("module", module),
        ("weight", module.weight),
        ("mean", module.running_mean),
    ]
    moved = move(dict(entries if module_first else reversed(entries)), "meta")
    assert moved["weight"] is module.weight
    assert moved["mean"] is module.running_mean


def test_own_method_moves() -> None:
    sample = Sample()
    moved = move([sample, sample], "meta", non_blocking=True)
    assert moved[0] is moved[1]
    assert moved[0].x.is_meta
    assert moved[0].calls == [{"device": torch.device("meta")}]
    assert not sample.x.is_meta


def test_own_method_gets_non_blocking_only_where_it_takes_it_and_it_is_asked_for() -> None:
    device = torch.device("meta")
    assert move(NonBlockingSample(), device, non_blocking=True).calls == [
        {"device": device, "non_blocking": True}
    ]
    assert move(NonBlockingSample(), device).calls == [{"device": device, "non_blocking": False}]


def test_own_method_that_returns_none_moved_in_place() -> None:
    sample = InPlaceSample()
    assert move(sample, "meta", non_blocking=True) is sample
    assert sample.x.is_meta
    assert sample.calls == [{"non_blocking": True}]


def test_non_blocking_is_not_passed_on_towards_the_cpu() -> None:
    sample = InPlaceSample()
    move(sample, "cpu", non_blocking=True)
    assert sample.calls == [{}]


def test_batch_of_a_tokenizer_is_not_changed() -> None:
    batch = Encoding(ids=torch.ones(2))
    moved = move(batch, "meta")
    assert type(moved) is Encoding
    assert moved["ids"].is_meta
    assert not batch["ids"].is_meta


def test_classes_and_other_values_are_no_leaves_to_move() -> None:
    tree = {"x": torch.ones(1), "class": torch.Tensor, "dtype": torch.float32, "f": len}
    moved = move(tree, "meta")
    assert moved["class"] is torch.Tensor
    assert moved["dtype"] is torch.float32
    assert moved["f"] is len


@pytest.mark.parametrize("empty", [5, "text", [], {}, (1, "a"), None, [[]]])
def test_nothing_to_move(empty: Any) -> None:
    with pytest.raises(MoveError, match="nothing to move in this " + type(empty).__name__):
        move(empty, "cpu")


def test_arguments_in_the_wrong_order() -> None:
    with pytest.raises(MoveError, match=r"'cuda' is a device.*move\(value, device\)"):
        move("cuda", torch.ones(1))


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def _dataset() -> torch.utils.data.Dataset[Any]:
    return torch.utils.data.TensorDataset(torch.ones(2))


@pytest.mark.parametrize(
    ("value", "type_name", "advice"),
    [
        (_optimizer(), "SGD", "build the optimizer from its parameters"),
        (
            torch.optim.lr_scheduler.LambdaLR(_optimizer(), lambda _: 1.0),
            "LambdaLR",
            "holds a SGD in .optimizer",
        ),
        (torch.utils.data.DataLoader(_dataset()), "DataLoader", r"anyrig.prefetch\(loader, rig\)"),
        (_dataset(), "TensorDataset", r"holds a Tensor in .tensors\[0\]"),
        ((t for t in [torch.ones(1)]), "generator", "make a list"),
        (map(abs, [torch.ones(1)]), "map", "make a list"),
        (SimpleNamespace(a={"b": [torch.ones(1)]}), "SimpleNamespace", r"in .a\['b'\]\[0\]"),
        (SimpleNamespace(net=torch.nn.Linear(1, 1)), "SimpleNamespace", "holds a Linear in .net"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_carry_tensors_out_of_reach(value: Any, type_name: str, advice: str) -> None:
    with pytest.raises(MoveError, match=f"cannot move {type_name} at the value: .*{advice}"):
        move(value, "meta")
    with pytest.raises(MoveError, match=rf"cannot move {type_name} at \['a'\]\[1\]: "):
        move({"a": [torch.ones(1), value]}, "meta")


def test_slots_and_private_names_are_searched() -> None:
    class Hidden:
        __slots__ = ("__x",)

        def __init__(self) -> None:
            self.__x = torch.ones(1)

    with pytest.raises(MoveError, match=r"holds a Tensor in \._Hidden__x"):
        move([torch.ones(1), Hidden()], "meta")


def test_nothing_has_moved_when_something_is_refused() -> None:
    module = torch.nn.Linear(1, 1)
    with pytest.raises(MoveError):
        move([module, SimpleNamespace(x=torch.ones(1))], "meta")
    assert not module.weight.is_meta


def test_values_without_tensors_pass() -> None:
    class Colour(enum.Enum):
        RED = 1

    loop = SimpleNamespace(name="a loop without tensors")
    loop.itself = loop
    harmless = [Colour.RED, io.StringIO("text"), loop, range(3), slice(1), object()]
    assert move([torch.ones(1), *harmless], "meta")[1:] == harmless


def test_search_for_tensors_ends() -> None:
    def endless(depth: int) -> SimpleNamespace:
        return SimpleNamespace(next=endless(depth - 1) if depth else None)

    wide = SimpleNamespace(parts=[endless(20) for _ in range(200)])
    refuse_unreachable(wide, ())


def test_iterator_is_not_consumed() -> None:
    numbers = itertools.count()
    with pytest.raises(MoveError):
        move([torch.ones(1), numbers], "meta")
    assert next(numbers) == 0


def test_a_method_without_a_signature_gets_the_device_alone() -> None:
    class Written:
        to = staticmethod(str)  # in C

    assert move([Written()], "meta", non_blocking=True) == ["meta"]


def test_the_nearest_tensor_is_named() -> None:
    value = SimpleNamespace(deep={"a": [torch.ones(1)]}, near=torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(MoveError, match=r"it holds a Parameter in \.near and has no method `to`"):
        move([torch.ones(1), value], "meta")


@pytest.mark.parametrize(
    ("inside", "place"),
    [
        ({"k": torch.ones(1)}, r"\['k'\]"),
        ((0, torch.ones(1)), r"\[1\]"),
        ({torch.ones(1)}, r"\[0\]"),
        (frozenset([torch.ones(1)]), r"\[0\]"),
        (UserDict(k=torch.ones(1)), r"\.data\['k'\]"),
    ],
)
def test_containers_within_objects_are_searched(inside: Any, place: str) -> None:
    with pytest.raises(MoveError, match=rf"holds a Tensor in \.inside{place} and"):
        move([torch.ones(1), SimpleNamespace(inside=inside)], "meta")


def test_programs_are_not_searched() -> None:
    def function() -> None: ...

    function.kept = torch.ones(1)  # type: ignore[attr-defined]
    holder = SimpleNamespace(
        function=function, module=torch, cls=type("C", (), {"x": torch.ones(1)})
    )
    assert move([torch.ones(1), holder], "meta")[1] is holder


@pytest.mark.parametrize(("objects", "is_found"), [(450, True), (1100, False)])
def test_the_search_has_an_end(objects: int, is_found: bool) -> None:
    chain: Any = SimpleNamespace(x=torch.ones(1))
    for _ in range(objects):
        chain = SimpleNamespace(next=chain)
    if is_found:
        with pytest.raises(MoveError, match=r"holds a Tensor in \.next\.next"):
            refuse_unreachable(chain, ())
    else:
        refuse_unreachable(chain, ())
