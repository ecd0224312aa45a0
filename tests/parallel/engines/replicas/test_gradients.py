"""How gradients return: added on the way, concurrently with computation, by autograd's rules."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyrig
from anyrig.parallel.engines.replicas import buckets

pytestmark = pytest.mark.gpus(4)


def pair(module: nn.Module, count: int = 4, **options: Any) -> tuple[nn.Module, Any]:
    one = module.double().to("cuda:0")
    rig = anyrig.Rig.parse(",".join(f"cuda:{index}" for index in range(count)))
    return one, anyrig.spread(copy.deepcopy(one), rig, **options)


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def batch(rows: int = 8, width: int = 4) -> Tensor:
    return torch.randn(rows, width, dtype=torch.float64, device="cuda:0")


class Chosen(nn.Module):
    """Each sample chooses some of the layers, so that replicas use different layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        out = x * 1.0
        for index in wanted.unique().tolist():
            out = out + self.layers[index](x) * (wanted == index).unsqueeze(1)
        return out


@pytest.mark.parametrize(
    "wanted", [[0, 0, 1, 1, 2, 2, 2, 2], [3] * 8, [1, 1, 1, 1, 1, 1, 0, 0]], ids=str
)
def test_replicas_may_use_different_parameters(wanted: list[int]) -> None:
    one, model = pair(Chosen())
    x, which = batch(), torch.tensor(wanted, device="cuda:0")
    for net in (one, model):
        net(x, which).square().sum().backward()
    torch.testing.assert_close(gradients(model), gradients(one))
    for index, layer in enumerate(model.layers):
        assert (layer.weight.grad is None) == (index not in wanted)


def test_a_loss_over_some_rows_only() -> None:
    one, model = pair(nn.Linear(4, 2))
    x = batch()
    for net in (one, model):
        net(x)[3:5].square().sum().backward()
    torch.testing.assert_close(gradients(model), gradients(one))


def test_dense_and_sparse_gradients_of_one_bucket() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, 4, sparse=True)
            self.linear = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.words(x))

    one, model = pair(Words())
    x = torch.randint(10, (8, 3), device="cuda:0")
    for net in (one, model):
        net(x).square().sum().backward()
    assert model.words.weight.grad.is_sparse
    torch.testing.assert_close(
        [g.to_dense() for g in gradients(model)], [g.to_dense() for g in gradients(one)]
    )


def test_gradients_of_gradients_reach_the_parameters() -> None:
    one, model = pair(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
    x = batch()
    for net in (one, model):
        first = torch.autograd.grad(
            net(x).square().sum(), list(net.parameters()), create_graph=True
        )
        sum(g.square().sum() for g in first).backward()
    torch.testing.assert_close(gradients(model), gradients(one))


def test_a_gradient_lies_as_its_parameter_does() -> None:
    _, model = pair(nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last))
    x = torch.randn(8, 4, 5, 5, dtype=torch.float64, device="cuda:0")
    model(x.to(memory_format=torch.channels_last)).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.stride() == parameter.stride()


class Sum(nn.Module):
    """Has two parameters whose gradient is the same tensor, each in its own bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(4, 50_000)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.first + self.second)


@pytest.mark.parametrize("kept_steps", [0, 1, 2])
def test_two_parameters_with_one_gradient(kept_steps: int) -> None:
    one, model = pair(Sum())
    for step in range(kept_steps + 1):
        x = batch()
        one(x).square().sum().backward()
        with model.no_sync() if step < kept_steps else nullcontext():
            model(x).square().sum().backward()
    torch.testing.assert_close(gradients(model), gradients(one))


def test_large_tensors_and_gradients_pass_in_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 100_000)
    one, model = pair(nn.Sequential(nn.Linear(4, 30_000), nn.Linear(30_000, 1)))
    x = batch()
    for net in (one, model):
        net(x).square().sum().backward()
    torch.testing.assert_close(gradients(model), gradients(one))
    with torch.no_grad():
        for net in (one, model):
            for parameter in net.parameters():
                parameter.sub_(0.1)
    torch.testing.assert_close(model(x), one(x))


def test_accumulating_into_gradients_that_are_there() -> None:
    one, model = pair(nn.Linear(4, 2))
    x = batch()
    for net in (one, model):
        for _ in range(3):
            net(x).sum().backward()
    torch.testing.assert_close(gradients(model), gradients(one))


def test_what_hangs_on_a_token_survives_autograd() -> None:
    """PyTorch keeps the Python object of a tensor for as long as the tensor lives in C++."""
    got: list[object] = []

    class Receives(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.zeros(())

        @staticmethod
        def backward(ctx: Any, token: Any) -> Tensor:
            got.append(token.load)
            return torch.ones(3)

    class Sends(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, token: Tensor) -> Tensor:
            return torch.zeros(2, device="cuda:1")

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            token: Any = torch.zeros(())
            token.load = "a load"
            return token

    x = torch.ones(3, requires_grad=True)
    Sends.apply(Receives.apply(x)).sum().backward()
    assert got == ["a load"]


class Sleep(torch.autograd.Function):
    """Keeps the device busy in backward, by the virtual clock only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        torch.cuda._sleep(1_000_000)
        return gradient.clone()


class Busy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Sleep.apply(super().forward(x))


def copy_seconds(numbers: int) -> float:
    """Return how long a copy of `numbers` float32 numbers between devices takes, by events."""
    source = torch.zeros(numbers, device="cuda:0")
    destination = torch.zeros(numbers, device="cuda:1")
    torch.cuda.synchronize(1)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    destination.copy_(source)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def test_the_reduction_runs_beside_the_backward() -> None:
    """Gradients of 16 MiB per layer are reduced while earlier layers compute, by virtual time."""
    width, layers = 2048, 4

    def seconds(learning: bool) -> float:
        module = nn.Sequential(*(Busy(width, width, bias=False) for _ in range(layers)))
        module.to("cuda:0").requires_grad_(learning)
        model = anyrig.spread(module, anyrig.Rig.parse("cuda:0,1,2,3"))
        loss = model(torch.ones(4, width, device="cuda:0", requires_grad=True)).sum()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for index in range(4):
            torch.cuda.synchronize(index)
        start.record()
        loss.backward()
        for index in range(4):
            torch.cuda.synchronize(index)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    one_after_the_other = 3 * layers * copy_seconds(width * width)
    assert seconds(learning=True) - seconds(learning=False) < 0.6 * one_after_the_other


def test_a_stream_of_the_callers_own() -> None:
    one, model = pair(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), 2)
    x = batch()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    one(x).sum().backward()
    torch.testing.assert_close(gradients(model), gradients(one))
