"""Arguments and methods whose names the module and the spread model both have."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel.named_arguments import place_of_argument, take_samples
from anyrig.parallel.plans import Pipeline, Plan, Replicas


class Decoder(nn.Module):
    """Takes its target as an argument, as for teacher forcing."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.feed = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        return self.encode(x) + (0 if target is None else self.feed(target))


class ByName(Decoder):
    def forward(self, x: Tensor, *, target: Tensor) -> Tensor:
        return super().forward(x, target)


class Decorated(Decoder):
    @staticmethod
    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    forward = traced(Decoder.forward)


class Replaced(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self.forward = functools.partial(type(self).forward, self)  # type: ignore[method-assign]


@pytest.mark.gpus(2)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("kind", [Decoder, ByName, Decorated])
def test_the_target_goes_to_the_loss_and_to_a_module_that_takes_it(kind: Any, devices: int) -> None:
    module = kind().to("cuda:0")
    one = copy.deepcopy(module)
    x, y = torch.randn(5, 4, device="cuda:0"), torch.randn(5, 3, device="cuda:0")
    nn.MSELoss()(one(x, target=y), y).backward()
    for options in ({}, {"accumulate": True}):
        module.zero_grad()
        model = anyrig.spread(module, first_devices(devices), loss=nn.MSELoss(), **options)
        model(x, target=y).backward()
        torch.testing.assert_close(module.feed.weight.grad, one.feed.weight.grad)


def test_a_target_in_its_place_is_the_modules() -> None:
    module = Decoder()
    x, y, feed = torch.randn(5, 4), torch.randn(5, 3), torch.randn(5, 3)
    loss = anyrig.spread(module, "cpu", loss=nn.MSELoss())(x, feed, target=y)
    torch.testing.assert_close(loss, nn.MSELoss()(module(x, feed), y))


@pytest.mark.parametrize(
    ("module", "place"),
    [(Decoder(), 1), (Decorated(), 1), (Replaced(), 1), (nn.Linear(2, 2), None), (nn.ReLU(), None)],
)
def test_the_place_of_an_argument(module: nn.Module, place: int | None) -> None:
    assert place_of_argument(module, "target") == place


def test_samples_that_a_module_takes_are_the_modules() -> None:
    class Sampler(nn.Module):
        def forward(self, x: Tensor, samples: int) -> Tensor:
            return x.expand(samples, *x.shape)

    kwargs = {"samples": 3}
    assert take_samples(Sampler(), kwargs) is None
    assert kwargs == {"samples": 3}
    assert len(anyrig.spread(Sampler(), "cpu")(torch.ones(2), samples=3)) == 3
    assert take_samples(nn.ReLU(), kwargs) == 3
    assert kwargs == {}


class WithOwnMethods(nn.Linear):
    def refresh(self) -> str:
        return "own"

    def join(self, other: int) -> int:
        return other + 1

    def scattered(self) -> str:
        return "own"

    def register_comm_hook(self) -> str:
        return "own"


def test_a_method_of_the_module_hides_the_spread_models() -> None:
    model: Any = anyrig.spread(WithOwnMethods(4, 2), "cpu")
    for same in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same.refresh() == same.scattered() == same.register_comm_hook() == "own"
        assert same.join(2) == 3
        assert same.refresh.__self__ is same.module
        with same.no_sync():
            assert same(torch.ones(3, 4)).shape == (3, 2)
    assert type(model).refresh(model) is None
    plain = anyrig.spread(nn.Linear(4, 2), "cpu")
    assert plain.refresh() is None


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("plan", [Replicas(), Pipeline()], ids=str)
def test_a_module_that_pytorch_has_spread_is_refused(plan: Plan, inside: bool) -> None:
    parallel = nn.DataParallel(nn.Linear(4, 3))
    module = nn.Sequential(nn.ReLU(), parallel) if inside else parallel
    place = "the module '1' is" if inside else "this module is"
    words = f"{place} a DataParallel, which PyTorch has spread .* its attribute module"
    with pytest.raises(SpreadError, match=words):
        anyrig.spread(module, "cpu", plan=plan)
    if isinstance(plan, Replicas):
        with pytest.raises(SpreadError, match=words):
            anyrig.DataParallel(module)
