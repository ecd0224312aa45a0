"""What replicas in processes refuse, with the remedy."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import anyrig
from anyrig.errors import BatchError, SpreadError

THREADS = r"use the threads of plan=Replicas\(\)"


def spread(module: nn.Module, **options: Any) -> Any:
    return anyrig.spread(module, "cpu", plan=anyrig.Replicas(processes=2), **options)


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        return self.last * 1


class Collects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(3, 2), []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.layer(x))
        return self.seen[-1] * 1


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)
        self.lock = threading.Lock()


def parametrized() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))


def with_hook() -> nn.Module:
    module = nn.Linear(3, 2)
    module.register_forward_hook(lambda *_: None)
    return module


def with_views() -> nn.Module:
    module = nn.Linear(3, 2)
    module.bias = nn.Parameter(module.weight.data[:, 0])
    return module


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a tensor in an attribute": (Keeps, rf"the forward keeps a tensor in Keeps.last.*{THREADS}"),
    "a tensor in a list": (Collects, rf"the forward keeps a tensor in Collects.seen.*{THREADS}"),
    "an attribute that cannot be sent": (Locked, rf"cannot be sent to.*lock.*{THREADS}"),
    "a parametrization": (parametrized, r"cannot be sent to.*only supported through"),
    "a hook": (with_hook, rf"a Linear has a hook \(forward hooks\).*{THREADS}"),
    "parameters that are views": (with_views, rf"two parameters.*the same memory.*{THREADS}"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_in_the_first_step(kind: str) -> None:
    build, message = REFUSED[kind]
    model = spread(build())
    with pytest.raises(SpreadError, match=message):
        model(torch.randn(4, 3))


class Yields(nn.Linear):
    """Returns what no process can send."""

    def forward(self, x: Tensor) -> Any:
        return (number for number in range(2))


def test_a_result_that_cannot_be_sent() -> None:
    with pytest.raises(SpreadError, match=rf"cannot be sent.*generator.*{THREADS}"):
        spread(Yields(3, 2))(torch.randn(4, 3))


def test_an_argument_that_cannot_be_sent() -> None:
    class Takes(nn.Linear):
        def forward(self, x: Tensor, lock: Any) -> Tensor:
            return super().forward(x)

    with pytest.raises(SpreadError, match=rf"cannot be sent.*lock.*{THREADS}"):
        spread(Takes(3, 2))(torch.randn(4, 3), threading.Lock())


class Held:
    """Holds a tensor, in a class that is no container."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class InAnObject(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return {"held": Held(super().forward(x)), "counts": x.new_zeros(len(x))}


def test_a_gradient_in_an_object() -> None:
    model = spread(InAnObject(3, 2))
    refusal = rf"dict holds a tensor with a gradient in an object that is not a.*{THREADS}"
    with pytest.raises(SpreadError, match=refusal):
        model(torch.ones(4, 3))


def test_sparse_gradients() -> None:
    model = spread(nn.EmbeddingBag(5, 2, sparse=True))
    output = model(torch.randint(5, (4, 3)))
    with pytest.raises(SpreadError, match=rf"sparse gradient.*{THREADS}"):
        output.sum().backward()


def test_a_mode_of_this_process_alone() -> None:
    model = spread(nn.Linear(3, 2))
    with FlopCounterMode(display=False), pytest.raises(SpreadError, match=THREADS):
        model(torch.randn(4, 3))


def test_gradients_of_gradients() -> None:
    model = spread(nn.Linear(3, 2))
    output = model(torch.randn(4, 3)).square().sum()
    with pytest.raises(SpreadError, match=rf"create_graph=True.*{THREADS}"):
        output.backward(create_graph=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"processes": 0}, "processes=0 is not a number of processes"),
        ({"processes": "two"}, "processes='two' is not a number of processes"),
        ({"processes": 2, "sync_batch_norm": True}, "sync_batch_norm=True exchanges statistics"),
        ({"processes": 2, "shares": "memory"}, "shares='memory' measures devices"),
    ],
)
def test_plans(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpreadError, match=message):
        anyrig.Replicas(**arguments)


def test_one_device_is_one_process() -> None:
    model = anyrig.spread(nn.Linear(3, 2), "cpu", plan=anyrig.Replicas(processes=True))
    assert anyrig.explain(model).way == "alone"


SCALE = 1.0


class Scaled(nn.Linear):
    """A class that workers import, and a global of its module."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * SCALE


@pytest.mark.parametrize("where", ["before the first step", "later"])
def test_a_global_that_was_assigned_in_an_imported_module(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = spread(Scaled(3, 2))
    if where == "later":
        model(torch.randn(4, 3))
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0)
    for _ in range(2):
        with pytest.raises(SpreadError, match=rf"SCALE has.* 2.0 instead of 1.0.*{THREADS}"):
            model(torch.randn(4, 3))


def test_a_method_that_was_replaced_in_an_imported_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scaled, "forward", lambda self, x: x)
    model = spread(Scaled(3, 2))
    with pytest.raises(SpreadError, match=rf"Scaled.forward has other code.*{THREADS}"):
        model(torch.randn(4, 3))


class OverSamples(nn.Linear):
    """Mixes the samples of a part; fails at first."""

    fails = True

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise LookupError("not yet")
        return super().forward(x).softmax(0)


def test_the_checks_of_a_first_call_that_failed_are_made_in_the_next() -> None:
    model = spread(OverSamples(3, 2))
    with pytest.raises(LookupError):
        model(torch.randn(4, 3))
    model.module.fails = False
    for _ in range(2):
        with pytest.raises(BatchError, match="halves"):
            model(torch.randn(4, 3))


class OfNested(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.nested.to_padded_tensor(x, 0.0))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_that_requires_gradients() -> None:
    parts = [torch.ones(rows, 3) for rows in (2, 1, 2, 1)]
    x = torch.nested.nested_tensor(parts, requires_grad=True)
    with pytest.raises(SpreadError, match=rf"a nested tensor requires gradients.*{THREADS}"):
        spread(OfNested(3, 2))(x)
