"""torch.compile around a spread model, and within one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices, on_lead

import anyrig
from anyrig.errors import SpreadError

pytestmark = [
    pytest.mark.gpus(3),
    # PyTorch's compiler causes these warnings itself, by deprecated imports and in its own code.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 4, dtype=torch.float64, device="cuda:0")


def compiled(model: Any, whole: str) -> Any:
    """Compile the model, or a function that calls it."""
    if whole == "the model":
        return torch.compile(model, backend="eager")
    return torch.compile(lambda *args, **named: model(*args, **named) * 1, backend="eager")


@pytest.mark.parametrize("whole", ["the model", "a function that calls it"])
def test_compiling_a_spread_model_changes_no_number(whole: str, x: Tensor) -> None:
    one = on_lead(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    model = anyrig.spread(copy.deepcopy(one), first_devices(1), loss=nn.MSELoss())
    called, y = compiled(model, whole), torch.zeros(6, 2, dtype=torch.float64, device="cuda:0")
    torch.testing.assert_close(called(x), one(x), rtol=1e-9, atol=1e-12)
    called(x, target=y).backward()
    nn.functional.mse_loss(one(x), y).backward()
    for found, expected in zip(model.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("whole", ["the model", "a function that calls it"])
def test_several_devices_in_one_process_are_not_compiled(whole: str, x: Tensor) -> None:
    one = on_lead(nn.Linear(4, 2))
    model = anyrig.spread(copy.deepcopy(one), first_devices(2))
    with pytest.raises(SpreadError, match=r"over 2 devices .* compiles: anyrig run SCRIPT\."):
        compiled(model, whole)(x)
    # The remedies in the message.
    called = compiled(torch.compiler.disable(model), "a function that calls it")
    torch.testing.assert_close(called(x), one(x), rtol=1e-9, atol=1e-12)
    made = torch.compile(copy.deepcopy(one), backend="eager")
    with pytest.raises(SpreadError, match=r"made by torch.compile.*anyrig run SCRIPT$"):
        anyrig.spread(made, first_devices(2))(x)


class Partly(nn.Module):
    """Its forward calls a compiled function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


def test_a_function_that_a_forward_calls_is_compiled_on_every_device(x: Tensor) -> None:
    devices = set()

    def note(graph: Any, inputs: list[Any]) -> Any:
        devices.update(str(each.device) for each in inputs if isinstance(each, Tensor))
        return graph

    net = on_lead(Partly(None))
    net.function = torch.compile(lambda hidden: (2 * hidden).sin(), backend=note)
    model = anyrig.spread(net, first_devices(3))
    for _ in range(2):
        torch.testing.assert_close(model(x), net(x), rtol=1e-9, atol=1e-12)
    assert devices == {"cuda:0", "cuda:1", "cuda:2"}
