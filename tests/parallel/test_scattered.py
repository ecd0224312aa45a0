"""Outputs that stay on their devices, and the loss computed from them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import CLASSES, assert_same_numbers, first_devices, on_lead, train

import anyrig

pytestmark = pytest.mark.gpus(4)

SHARES = {"even": "even", "uneven": [1, 3, 2, 1], "empty": [0, 2, 0, 1]}


@pytest.fixture
def x() -> Tensor:
    return torch.randn(10, 4, dtype=torch.float64, device="cuda:0")


@pytest.mark.parametrize("shares", SHARES)
def test_each_output_stays_where_it_was_computed(shares: str, x: Tensor) -> None:
    net = on_lead(nn.Linear(4, CLASSES))
    model = anyrig.spread(net, first_devices(4), plan=anyrig.Replicas(shares=SHARES[shares]))
    outputs = model.scattered(x)
    assert all(type(output) is Tensor and len(output) > 0 for output in outputs)
    devices = {"even": [0, 1, 2, 3], "uneven": [0, 1, 2, 3], "empty": [1, 3]}[shares]
    assert [output.get_device() for output in outputs] == devices
    torch.testing.assert_close(
        anyrig.parallel.gather(outputs, "cuda:0"), net(x), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("shares", SHARES)
def test_three_steps_with_the_parallel_loss(shares: str, x: Tensor) -> None:
    """The steps have a batch that leaves devices idle, and ignored targets."""
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    target = torch.randint(CLASSES, (10,), device="cuda:0")
    target[:4] = -100
    batches = [((x,), target), ((x[:3],), target[-3:]), ((x,), target.flip(0))]
    criterion = nn.CrossEntropyLoss()
    one, several = on_lead(module), on_lead(module)
    expected = train(one, batches, "sgd", lambda inputs, y: criterion(one(*inputs), y))
    model = anyrig.spread(several, first_devices(4), plan=anyrig.Replicas(shares=SHARES[shares]))
    of_parts = anyrig.ParallelLoss(criterion, "cuda:0")  # also if the lead has no samples
    found = train(several, batches, "sgd", lambda inputs, y: of_parts(model.scattered(*inputs), y))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert_same_numbers(several, one)


class Named(nn.Linear):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": super().forward(x), "name": "linear"}


def test_structures_and_an_empty_batch(x: Tensor) -> None:
    model = anyrig.spread(on_lead(Named(4, 2)), first_devices(2))
    outputs = model.scattered(x)
    assert [list(output) for output in outputs] == [["logits", "name"]] * 2
    (none,) = model.scattered(x[:0])
    assert none["logits"].shape == (0, 2)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_one_device_has_a_list_of_one(device: str, x: Tensor) -> None:
    net = nn.Linear(4, 2).double().to(device)
    model = anyrig.spread(net, anyrig.Rig.parse(device))
    (output,) = model.scattered(x)
    assert output.device == torch.device(device)
    loss = anyrig.ParallelLoss(nn.MSELoss())([output], torch.zeros(10, 2).double())
    torch.testing.assert_close(loss, output.square().mean())


def test_hooks_of_the_model_get_the_list(x: Tensor) -> None:
    model = anyrig.spread(on_lead(nn.Linear(4, 2)), first_devices(2))
    seen = []
    model.register_forward_hook(lambda module, args, output: seen.append(type(output)))
    model.scattered(x)
    model(x)
    assert seen == [list, Tensor]


def test_it_gathers_again_after_a_failure(x: Tensor) -> None:
    model = anyrig.spread(on_lead(nn.Linear(4, 2)), first_devices(2))
    with pytest.raises(RuntimeError, match="shapes"):
        model.scattered(x[:, :3])
    assert model(x).shape == (10, 2)


def test_it_gathers_again_after_a_hook_that_raises_before_it(x: Tensor) -> None:
    model = anyrig.spread(on_lead(nn.Linear(4, 2)), first_devices(2))

    def refuse(module: nn.Module, args: Any) -> None:
        raise ValueError("not this batch")

    hook = model.register_forward_pre_hook(refuse)
    with pytest.raises(ValueError, match="not this batch"):
        model.scattered(x)
    hook.remove()
    assert type(model(x)) is Tensor


@pytest.mark.parametrize("devices", [1, 2])
def test_another_thread_that_calls_the_model_meanwhile_gathers(devices: int, x: Tensor) -> None:
    inside, scattering = threading.Event(), threading.Event()

    class Waiting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            assert scattering.wait(30)
            return super().forward(x)

    model = anyrig.spread(on_lead(Waiting(4, 2)), first_devices(devices))
    here = threading.current_thread()

    def note(module: nn.Module, args: Any) -> None:
        if threading.current_thread() is here:
            scattering.set()

    model.register_forward_pre_hook(note)
    found: list[Any] = []
    other = threading.Thread(target=lambda: found.append(model(x)))
    other.start()
    assert inside.wait(30)
    outputs = model.scattered(x)
    other.join(30)
    assert [type(output) for output in found] == [Tensor]
    assert len(outputs) == devices


def test_a_call_within_a_scattered_one_gathers(x: Tensor) -> None:
    """A hook that calls the model again, as for a preview, gets gathered outputs."""
    model = anyrig.spread(on_lead(nn.Linear(4, 2)), first_devices(2))
    found: list[Any] = []

    def preview(module: nn.Module, args: Any, outputs: Any) -> None:
        if not found:
            found.append(None)
            found.append(model(x))

    model.register_forward_hook(preview)
    assert type(model.scattered(x)) is list
    assert type(found[1]) is Tensor


def test_a_target_is_for_the_loss(x: Tensor) -> None:
    model = anyrig.spread(on_lead(nn.Linear(4, 2)), first_devices(2), loss=nn.MSELoss())
    with pytest.raises(TypeError, match=r"call model\(x, target=y\), or pass .*ParallelLoss"):
        model.scattered(x, target=x)
