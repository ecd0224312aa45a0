"""Which changes of the caller's module reach the replicas by themselves, and which by `refresh`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices, on_lead

import anyrig

pytestmark = pytest.mark.gpus(3)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 4, dtype=torch.float64, device="cuda:0")


def models() -> tuple[nn.Module, Any]:
    net = on_lead(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.BatchNorm1d(3)))
    return net, anyrig.spread(net.eval(), first_devices(3))


def add_in_place(net: nn.Module) -> None:
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.add_(1)


def add_in_inference_mode(net: nn.Module) -> None:
    with torch.inference_mode():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.add_(1)


def load(net: nn.Module) -> None:
    net.load_state_dict({name: value + 1 for name, value in net.state_dict().items()})


def load_and_assign(net: nn.Module) -> None:
    state = {name: value + 1 for name, value in net.state_dict().items()}
    net.load_state_dict(state, assign=True)


def replace(net: Any) -> None:
    net[0].weight = nn.Parameter(net[0].weight.detach() + 1)
    net[3].running_mean = net[3].running_mean + 1


def point_elsewhere(net: nn.Module) -> None:
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.data = tensor.data + 1


def step_without_the_model(net: nn.Module) -> None:
    """Take a fused step, which changes no version, on gradients that no replica computed."""
    net(torch.ones(6, 4, dtype=torch.float64, device="cuda:0")).square().sum().backward()
    torch.optim.SGD(net.parameters(), 1.0, fused=True).step()
    net.zero_grad()


@pytest.mark.parametrize(
    "change",
    [
        add_in_place,
        add_in_inference_mode,
        load,
        load_and_assign,
        replace,
        point_elsewhere,
        step_without_the_model,
    ],
    ids=lambda function: function.__name__,
)
def test_a_change_that_is_sent_by_itself(change: Callable[[Any], None], x: Tensor) -> None:
    net, model = models()
    with torch.no_grad():
        model(x)
        before = model(x)
    for _ in range(2):
        change(net)
        with torch.no_grad():
            torch.testing.assert_close(model(x), net(x), rtol=1e-9, atol=1e-12)
    assert not torch.equal(model(x), before)


def test_weights_swapped_through_data(x: Tensor) -> None:
    """Swapped rows of a weight leave every sum over the weights unchanged."""
    net, model = models()
    with torch.no_grad():
        model(x)
        for _ in range(3):
            for tensor in (*net.parameters(), *net.buffers()):
                if tensor.dim():
                    tensor.data.copy_(tensor.flip(0))
            model.refresh()
            torch.testing.assert_close(model(x), net(x), rtol=1e-9, atol=1e-12)


def test_a_device_that_sat_out_the_refreshed_step(x: Tensor) -> None:
    net, model = models()
    with torch.no_grad():
        model(x)
        net[0].weight.data.mul_(2)
        model.refresh()
        model(x[:2])  # no sample for the last device
        torch.testing.assert_close(model(x), net(x), rtol=1e-9, atol=1e-12)


def test_averages_swapped_in_for_an_evaluation_and_out_again(x: Tensor) -> None:
    """Averages are swapped through ``.data``, as by libraries: after backward, before training."""
    net, model = models()
    one = copy.deepcopy(net)
    model(x).square().sum().backward()
    model.zero_grad()
    own = [parameter.detach().clone() for parameter in net.parameters()]
    for parameter in net.parameters():
        parameter.data.mul_(0.5)
    with torch.no_grad():
        torch.testing.assert_close(model(x), net(x), rtol=1e-9, atol=1e-12)
    for parameter, value in zip(net.parameters(), own, strict=True):
        parameter.data.copy_(value)
    model(x).square().sum().backward()
    one(x).square().sum().backward()
    for parameter, expected in zip(net.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-9, atol=1e-12)


def evaluate_first(model: Any, x: Tensor) -> Tensor:
    loss = model(x).square().sum()
    with torch.no_grad():
        model(x)
    return loss


@pytest.mark.parametrize(
    "loss_of",
    [
        pytest.param(lambda model, x: model(x).square().sum(), id="of all rows"),
        pytest.param(lambda model, x: model(x[:1]).square().sum(), id="of a row for the lead"),
        pytest.param(lambda model, x: model.scattered(x)[0].sum(), id="of the lead's rows"),
        pytest.param(evaluate_first, id="with a call before the backward pass"),
    ],
)
def test_a_step_written_by_hand(loss_of: Callable[[Any, Tensor], Tensor], x: Tensor) -> None:
    net, model = models()
    for _ in range(2):
        loss_of(model, x).backward()
        for parameter in net.parameters():
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None
        with torch.no_grad():
            torch.testing.assert_close(model(x), net(x), rtol=1e-9, atol=1e-12)


def test_the_method_is_there_on_one_device() -> None:
    anyrig.spread(nn.Linear(2, 2).to("cuda:0"), first_devices(1)).refresh()


def test_an_evaluation_loop_sends_nothing_and_waits_for_nothing() -> None:
    """By the virtual clock, the host runs ahead of the devices."""
    net = nn.Linear(4096, 4096, bias=False).to("cuda:0")
    model = anyrig.spread(net, first_devices(2))
    x = torch.randn(2, 4096, device="cuda:0")
    with torch.no_grad():
        for _ in range(2):
            model(x)
        torch.cuda._sleep(14_100_000)  # ten milliseconds at 1.41 GHz
        slept = torch.cuda.current_stream().record_event()
        for _ in range(2):
            model(x)
    assert not slept.query()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's compiler causes them
def test_a_compiled_step(x: Tensor) -> None:
    net, model = models()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(2):
        model(x).square().sum().backward()
        step()
        with torch.no_grad():
            torch.testing.assert_close(model(x), net(x), rtol=1e-9, atol=1e-12)
