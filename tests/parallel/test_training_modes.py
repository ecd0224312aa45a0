"""Autocast, scaling, no_grad, inference, checkpointing, dropout, accumulation, as on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from trained_models import first_devices, on_lead

import anyrig
from anyrig.parallel.plans import Replicas

pytestmark = pytest.mark.gpus(2)


def spread(module: nn.Module, **options: Any) -> Any:
    return anyrig.spread(module, first_devices(2), **options)


def inputs(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(6, 4, dtype=dtype, device="cuda:0")


def assert_same_gradients(found: nn.Module, expected: nn.Module) -> None:
    for here, there in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(here.grad, there.grad)


class Asking(nn.Module):
    """Notes the modes in which it is called."""

    def __init__(self, note: Callable[[tuple[Any, ...]], None]) -> None:
        super().__init__()
        self.note = note
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.note(
            (
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
                torch.is_autocast_enabled("cuda"),
                torch.get_autocast_dtype("cuda"),
            )
        )
        return self.linear(x)


@pytest.mark.parametrize(
    "mode",
    [
        torch.enable_grad,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cuda", torch.bfloat16),
        lambda: torch.autocast("cuda", torch.float16, cache_enabled=False),
    ],
    ids=["grad", "no_grad", "inference", "bfloat16", "half"],
)
def test_replicas_run_in_the_mode_of_the_caller(mode: Any) -> None:
    seen: list[tuple[Any, ...]] = []
    module = Asking(lambda modes: seen.append(modes)).to("cuda:0")
    model = spread(module)
    x = inputs(torch.float32)
    with mode():
        model(x)  # the first call computes halves, too
        seen.clear()
        expected = module(x)
        found = model(x)
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert found.dtype is expected.dtype
    assert found.requires_grad is expected.requires_grad
    assert found.is_inference() is expected.is_inference()
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


def test_training_goes_on_after_inference() -> None:
    one = on_lead(nn.Linear(4, 2))
    several = on_lead(one)
    model, x = spread(several), inputs()
    with torch.inference_mode():
        model(x)
    with torch.no_grad():
        model(x)
    model(x).square().sum().backward()
    one(x).square().sum().backward()
    assert_same_gradients(several, one)


def test_default_dtype_and_device_of_the_caller() -> None:
    class Making(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.ones(x.shape)

    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("cuda"):
            # A default device without index is the replica's own.
            assert spread(Making())(inputs()).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast_and_a_gradient_scaler() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("cuda:0")
    model = spread(module, loss=nn.MSELoss())
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    x, y = inputs(torch.float32), torch.zeros(6, 2, device="cuda:0")
    before = module[0].weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(x, target=y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert not torch.equal(before, module[0].weight)
    assert scaler.get_scale() == 2.0**10


def test_an_overflow_in_one_replica_is_seen_by_the_scaler() -> None:
    module = nn.Linear(4, 2).to("cuda:0")
    model = spread(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    x = inputs(torch.float32)
    x[-1] = torch.inf
    before = module.weight.detach().clone()
    scaler.scale(model(x).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(before, module.weight)
    assert scaler.get_scale() == 2.0**9


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 2)
        self.inside = nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 4))
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.inside, self.before(x), use_reentrant=self.use_reentrant)
        return self.after(hidden)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing(use_reentrant: bool, fused: bool) -> None:
    one = on_lead(Checkpointed(use_reentrant))
    several = on_lead(one)
    criterion = nn.MSELoss()
    model, x, y = spread(several, loss=criterion), inputs(), inputs()[:, :2]
    for _ in range(2):
        one.zero_grad()
        several.zero_grad()
        criterion(one(x), y).backward()
        (model(x, target=y) if fused else criterion(model(x), y)).backward()
        assert_same_gradients(several, one)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_around_the_model(use_reentrant: bool) -> None:
    one = on_lead(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)))
    several = on_lead(one)
    model, x = spread(several), inputs().requires_grad_()
    for _ in range(3):
        one(x).square().sum().backward()
        checkpoint(model, x, use_reentrant=use_reentrant).square().sum().backward()
        assert_same_gradients(several, one)


def test_generators_and_discriminators() -> None:
    """Two models with different shares, and a gradient that passes both."""
    ones = [on_lead(nn.Sequential(nn.Linear(4, 4), nn.Tanh())) for _ in range(2)]
    several = [on_lead(module) for module in ones]
    models = [spread(several[0]), spread(several[1], plan=Replicas(shares=[1, 3]))]
    x = inputs()
    for make, judge in (ones, models):
        (judge(make(x)).square().mean() + judge(x).mean()).backward()
    for found, expected in zip(several, ones, strict=True):
        assert_same_gradients(found, expected)


def test_saving_on_the_cpu_reaches_the_replicas() -> None:
    module = on_lead(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)))
    packed: list[torch.device] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.device)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = spread(module)(inputs()).sum()
    loss.backward()
    assert {str(device) for device in packed} >= {"cuda:0", "cuda:1"}


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_dropout_under_checkpointing_draws_the_same_twice(use_reentrant: bool) -> None:
    """With different draws, the gradient of this linear map would not be the map."""
    module = on_lead(Checkpointed(use_reentrant, dropout=0.5))
    model = spread(module)
    x = inputs().requires_grad_()
    y = model(x)
    y.sum().backward()
    # Linear in x: the value is the gradient times x, plus what it is at 0 with the same mask.
    torch.cuda.manual_seed_all(3)
    y = model(x)
    torch.cuda.manual_seed_all(3)
    offset = model(torch.zeros_like(x))
    x.grad = None
    y.sum().backward()
    torch.testing.assert_close((x.grad * x).sum(), (y - offset).sum())


@pytest.mark.parametrize("devices", [1, 2])
def test_dropout_is_reproducible(devices: int) -> None:
    def run() -> tuple[list[Tensor], list[Tensor]]:
        torch.manual_seed(5)
        module = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2)).to("cuda:0")
        model = anyrig.spread(module, first_devices(devices))
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        outputs = []
        for _ in range(3):
            output = model(torch.ones(6, 4, device="cuda:0"))
            optimizer.zero_grad()
            output.square().mean().backward()
            optimizer.step()
            outputs.append(output.detach())
        return outputs, [p.detach().clone() for p in module.parameters()]

    first, second = run(), run()
    for here, there in zip((*first[0], *first[1]), (*second[0], *second[1]), strict=True):
        assert torch.equal(here, there)


def test_accumulated_gradients() -> None:
    one = on_lead(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)))
    several = on_lead(one)
    model, batches = spread(several), [inputs() for _ in range(4)]
    for x in batches:
        one(x).mean().backward()
        model(x).mean().backward()
    assert_same_gradients(several, one)


def test_several_forwards_before_one_backward() -> None:
    one = on_lead(nn.Linear(4, 4))
    several = on_lead(one)
    model, x = spread(several), inputs()
    for module in (one, model):
        (module(module(x)) + module(x)).square().sum().backward()
    assert_same_gradients(several, one)


def test_a_retained_graph_is_walked_twice() -> None:
    one = on_lead(nn.Linear(4, 2))
    several = on_lead(one)
    model, x = spread(several), inputs()
    for module in (one, model):
        loss = module(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same_gradients(several, one)


def test_a_forward_whose_backward_never_comes() -> None:
    one = on_lead(nn.Linear(4, 2))
    several = on_lead(one)
    model, x = spread(several), inputs()
    model(x)
    model(2 * x)
    model(x).square().sum().backward()
    one(x).square().sum().backward()
    assert_same_gradients(several, one)


def test_a_backward_through_one_output_of_two() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.left(x), self.right(x)

    module = on_lead(Two())
    model, x = spread(module), inputs()
    model(x)[0].sum().backward()
    assert module.right.weight.grad is None
    torch.testing.assert_close(module.left.weight.grad, x.sum(0, keepdim=True))
    # A slice of the output that only one device computed.
    module.zero_grad()
    model(x)[0][:1].sum().backward()
    torch.testing.assert_close(module.left.weight.grad, x[:1])


def test_parameters_changed_between_forward_and_backward_are_told() -> None:
    """An error is raised, as on one device: the gradient would be that of other weights."""
    module = on_lead(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    model, x = spread(module), inputs()
    loss = model(x).sum()
    with torch.no_grad():
        module[1].weight.add_(1)
    with pytest.raises(RuntimeError, match=r"modified.* in-?place"):
        loss.backward()


def test_anomaly_detection_works() -> None:
    module = on_lead(nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        spread(module)(inputs()).sum().backward()
    assert module.weight.grad is not None


def test_spectral_and_weight_norm() -> None:
    one = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
    ).to("cuda:0", torch.float64)
    x = inputs()
    expected = one(x)
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in one.parameters()]
    one.zero_grad()
    found = spread(one)(x)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    torch.testing.assert_close([p.grad for p in one.parameters()], gradients)
