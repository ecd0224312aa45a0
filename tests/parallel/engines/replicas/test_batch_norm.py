"""Batch normalization over the samples of all devices, in one process."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import anyrig
from anyrig.errors import ReplicaWaitError, SpreadError
from anyrig.parallel.engines.replicas.batch_norm import WholeBatchNorm, synchronize_batch_norm
from anyrig.parallel.engines.replicas.meeting import Meeting, Stopped, current_meeting, is_inside

pytestmark = [
    pytest.mark.gpus(3),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]


def network(**options: object) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, **options), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    ).double()


def add(devices: Sequence[torch.device], values: Sequence[int]) -> list[int]:
    return [sum(values)] * len(devices)


def rig(count: int = 3) -> anyrig.Rig:
    return anyrig.Rig.parse(",".join(f"cuda:{index}" for index in range(count)))


@pytest.mark.parametrize("shares", [[1, 1, 1], [5, 1, 2], [0, 3, 2]], ids=str)
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"affine": False}], ids=str)
def test_it_is_that_of_the_whole_batch(shares: list[float], options: dict[str, object]) -> None:
    one = network(**options).to("cuda:0")
    module = copy.deepcopy(one)
    model = anyrig.spread(module, rig(), plan=anyrig.Replicas(shares=shares, sync_batch_norm=True))
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (one, model)]
    for step in range(3):
        x = torch.randn(9 - step, 2, 8, 8, dtype=torch.float64, device="cuda:0")
        for net, optimizer in zip((one, model), optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    if shares[0]:  # the buffers are the lead's, which computes nothing without samples
        torch.testing.assert_close(model.state_dict(), one.state_dict(), rtol=1e-9, atol=1e-12)
    for found, expected in zip(model.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shares", [[1, 1], [2, 0], [0, 2]], ids=str)
def test_the_smallest_batch_that_has_statistics(shares: list[float]) -> None:
    """Two samples, one on each device or both on one: a single sample would be refused."""
    one = nn.BatchNorm1d(3).double().to("cuda:0")
    model = anyrig.spread(
        copy.deepcopy(one), rig(2), plan=anyrig.Replicas(shares=shares, sync_batch_norm=True)
    )
    x = torch.randn(2, 3, dtype=torch.float64, device="cuda:0")
    for _ in range(2):
        found, expected = model(x), one(x)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        for output in (found, expected):
            output.pow(3).sum().backward()
    torch.testing.assert_close(model.state_dict(), one.state_dict(), rtol=1e-9, atol=1e-12)
    for found, expected in zip(model.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-9, atol=1e-12)


def test_gradients_of_inputs_and_second_derivatives() -> None:
    layer = nn.BatchNorm1d(2).double().to("cuda:0")
    model = anyrig.spread(
        copy.deepcopy(layer), rig(), plan=anyrig.Replicas(shares=[2, 1, 3], sync_batch_norm=True)
    )
    x = torch.randn(6, 2, dtype=torch.float64, device="cuda:0", requires_grad=True)
    found, expected = [], []
    for net, into in ((layer, expected), (model, found)):
        (gradient,) = torch.autograd.grad(net(x).pow(3).sum(), x, create_graph=True)
        into += [gradient, *torch.autograd.grad(gradient.square().sum(), x)]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_layers_keep_parameters_buffers_hooks_and_mode() -> None:
    module = network().to("cuda:0").eval()
    seen: list[Tensor] = []
    module[1].register_forward_hook(lambda layer, args, output: seen.append(output))
    weight, mean = module[1].weight, module[1].running_mean
    model = anyrig.spread(module, rig(), plan=anyrig.Replicas(sync_batch_norm=True))
    assert type(model.module[1]) is WholeBatchNorm
    assert model.module[1].weight is weight
    assert model.module[1].running_mean is mean
    x = torch.randn(6, 2, 8, 8, dtype=torch.float64, device="cuda:0")
    torch.testing.assert_close(model(x), module(x))
    assert len(seen) == 4


def test_alone_it_is_the_layer_it_was() -> None:
    layer = nn.BatchNorm1d(3)
    twin = synchronize_batch_norm(copy.deepcopy(layer))
    for _ in range(2):
        x = torch.randn(5, 3)
        torch.testing.assert_close(twin(x), layer(x))
    torch.testing.assert_close(twin.state_dict(), layer.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_counts_in_float32(dtype: torch.dtype) -> None:
    layer = nn.BatchNorm1d(2).to("cuda:0")
    model = anyrig.spread(copy.deepcopy(layer), rig(), plan=anyrig.Replicas(sync_batch_norm=True))
    x = (torch.randn(12, 2, device="cuda:0") + 300).to(dtype)
    torch.testing.assert_close(model(x), layer(x), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(model.running_var, layer.running_var, rtol=1e-4, atol=1e-4)


def test_one_value_a_channel_is_refused() -> None:
    model = anyrig.spread(
        nn.BatchNorm1d(2).to("cuda:0"), rig(), plan=anyrig.Replicas(sync_batch_norm=True)
    )
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.randn(1, 2, device="cuda:0"))


def test_a_replica_that_fails_does_not_leave_the_others_waiting() -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.get_device() == 1:
                raise ArithmeticError("of its own")
            return x

    module = nn.Sequential(Failing(), nn.BatchNorm1d(2)).to("cuda:0")
    model = anyrig.spread(module, rig(), plan=anyrig.Replicas(sync_batch_norm=True))
    started = time.monotonic()
    with pytest.raises(ArithmeticError, match="of its own"):
        model(torch.randn(6, 2, device="cuda:0"))
    assert time.monotonic() - started < 30


def test_who_does_not_come_is_named() -> None:
    devices = [torch.device("cuda", index) for index in range(3)]
    meeting = Meeting(devices, wait_seconds=0.3)
    with pytest.raises(ReplicaWaitError, match=r"0\.3 s for a sum of cuda:0, cuda:2; every rep"):
        meeting.combine(devices[1], 1, add, "a sum")


def test_waiting_ends_when_another_fails() -> None:
    meeting = Meeting([torch.device("cuda:0"), torch.device("cuda:1")])
    timer = threading.Timer(0.1, meeting.stop)
    timer.start()
    with pytest.raises(Stopped):
        meeting.combine(torch.device("cuda:1"), 1, add, "a sum")
    timer.join()


def test_replicas_that_meet_for_different_things_are_named() -> None:
    devices = [torch.device("cuda:0"), torch.device("cuda:1")]
    meeting = Meeting(devices, wait_seconds=30.0)
    errors: list[BaseException] = []

    def bring(device: torch.device, what: str) -> None:
        try:
            meeting.attend(lambda: meeting.combine(device, 1, add, what))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=bring, args=(devices[1], "a sum"))
    thread.start()
    bring(devices[0], "a product")
    thread.join()
    (error,) = (each for each in errors if not isinstance(each, Stopped))
    assert len(errors) == 2
    assert isinstance(error, SpreadError)
    assert "cuda:0 has reached a product, but the one on cuda:1 has reached a sum" in str(error)


def test_a_layer_that_is_used_twice_stays_one() -> None:
    layer = nn.BatchNorm1d(2)
    module = synchronize_batch_norm(nn.Sequential(layer, nn.Tanh(), layer))
    assert module[0] is module[2]
    assert type(module[0]) is WholeBatchNorm


def small_network() -> nn.Module:
    # More outputs than any batch here has samples: if the shapes did not show which dimension has
    # the samples, the module and its hooks, which count calls, would be called once more.
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 12)).to("cuda:0")


@pytest.mark.parametrize("shares", ["auto", [8, 1, 1], [1, 0, 1]], ids=str)
@pytest.mark.parametrize("rows", range(2, 11))
def test_no_device_has_a_single_sample_of_several(rows: int, shares: list[float] | None) -> None:
    net = small_network()
    seen: list[int] = []
    net[1].register_forward_pre_hook(lambda layer, args: seen.append(len(args[0])))
    model = anyrig.spread(net, rig(), plan=anyrig.Replicas(shares=shares))
    output = model(torch.randn(rows, 3))
    output.sum().backward()
    assert output.shape == (rows, 12)
    assert sum(seen) == rows
    assert 1 not in seen


def test_layers_that_take_no_statistics_leave_single_samples_where_they_are() -> None:
    seen: list[int] = []
    groups = nn.GroupNorm(1, 3).to("cuda:0")
    for net in (nn.Linear(3, 4).to("cuda:0"), small_network().eval(), groups):
        net.register_forward_pre_hook(lambda layer, args: seen.append(len(args[0])))
        anyrig.spread(net, rig(), plan=anyrig.Replicas(shares=[8, 1, 1]))(torch.randn(10, 3))
    synchronized = small_network()
    synchronized.register_forward_pre_hook(lambda layer, args: seen.append(len(args[0])))
    anyrig.spread(
        synchronized, rig(), plan=anyrig.Replicas(shares=[8, 1, 1], sync_batch_norm=True)
    )(torch.randn(10, 3))
    assert sorted(seen) == [1] * 8 + [8] * 4


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3, track_running_stats=False).eval(), nn.GroupNorm(3, 3)], ids=repr
)
def test_layers_that_refuse_a_single_sample_in_any_mode(layer: nn.Module) -> None:
    model = anyrig.spread(layer.to("cuda:0"), rig(), plan=anyrig.Replicas(shares=[8, 1, 1]))
    assert model(torch.randn(10, 3)).shape == (10, 3)


def test_a_batch_of_one_sample_is_explained() -> None:
    model = anyrig.spread(small_network(), rig())
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        model(torch.randn(1, 3))
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "sync_batch_norm=True" in text
    assert "drop_last=True" in text


@pytest.mark.parametrize("cls", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
def test_a_vector_has_no_channels(cls: type[nn.Module]) -> None:
    model = anyrig.spread(cls(3).to("cuda:0"), rig(), plan=anyrig.Replicas(sync_batch_norm=True))
    with pytest.raises(ValueError, match="expected at least 2 dimensions, got 1"):
        model(torch.ones(6))


@pytest.mark.parametrize("momentum", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("tracks", [True, False])
def test_statistics_follow_the_momentum(momentum: float | None, tracks: bool) -> None:
    """None averages all batches; a layer that tracks nothing uses batch statistics in eval()."""
    layer = nn.BatchNorm1d(3, momentum=momentum, track_running_stats=tracks).to("cuda:0")
    model = anyrig.spread(copy.deepcopy(layer), rig(), plan=anyrig.Replicas(sync_batch_norm=True))
    for training in (True, True, False, True):
        layer.train(training)
        model.train(training)
        x = torch.randn(7, 3, device="cuda:0")
        torch.testing.assert_close(model(x), layer(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state_dict(), layer.state_dict(), rtol=1e-4, atol=1e-5)
    if not tracks:
        assert model.module.running_mean is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_result_has_the_inputs_dtype(dtype: torch.dtype) -> None:
    model = anyrig.spread(
        nn.BatchNorm1d(3).to("cuda:0"), rig(), plan=anyrig.Replicas(sync_batch_norm=True)
    )
    assert model(torch.randn(6, 3, device="cuda:0", dtype=dtype)).dtype == dtype


def test_a_meeting_within_another_ends_with_its_function() -> None:
    device = torch.device("cuda:0")
    outer, inner, silent = Meeting([device]), Meeting([device]), Meeting([device], exchanges=False)

    def fail() -> None:
        assert current_meeting() is inner
        raise ArithmeticError

    def call() -> None:
        assert current_meeting() is outer
        with pytest.raises(ArithmeticError):
            inner.attend(fail)
        assert inner.stopped
        assert current_meeting() is outer
        assert silent.attend(lambda: (is_inside(), current_meeting())) == (True, None)

    outer.attend(call)
    assert not outer.stopped
    assert (is_inside(), current_meeting()) == (False, None)
