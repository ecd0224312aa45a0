"""`verify` in one process that drives several GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig import Rig
from anyrig.verification import verify

FEATURES = 6


def train(spread: Callable[[nn.Module, Rig], nn.Module], loss_of: object = None) -> object:
    """Return a training run of two steps with micro-batches, the last of which are odd."""

    def steps(rig: Rig) -> None:
        device = rig.lead.torch_device
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 3)).to(device)
        model = spread(net, rig)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = TensorDataset(torch.randn(39, FEATURES), torch.randint(3, (39,)))
        for number, (x, y) in enumerate(DataLoader(data, 10)):
            output = model(x.to(device))
            loss = nn.functional.cross_entropy(output, y.to(output.device), reduction="sum")
            (loss / 20).backward()
            if number % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()

    return steps


def torch_data_parallel(net: nn.Module, rig: Rig) -> nn.Module:
    return nn.DataParallel(net, [device.index for device in rig])


WAYS = {
    "DataParallel": torch_data_parallel,
    "replicas": lambda net, rig: anyrig.spread(net, rig),
    "pipeline": lambda net, rig: (
        anyrig.spread(net, rig, plan=anyrig.Pipeline()) if len(rig) > 1 else net
    ),
}


@pytest.mark.gpus(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_correct_spread_is_the_same(way: str) -> None:
    verdict = verify(train(WAYS[way]), "cuda:0,1")
    assert verdict, str(verdict)
    assert (verdict.steps, verdict.dtype, verdict.bound) == (2, "float64", 1e-9)


class Detached(nn.Module):
    """A model whose first layer gets no gradient on two devices."""

    def __init__(self, net: nn.Module, rig: Rig) -> None:
        super().__init__()
        self.net, self.is_spread = net, len(rig) > 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.net[0](x)
        return self.net[2](hidden.detach() if self.is_spread else hidden)


@pytest.mark.gpus(2)
@pytest.mark.hazards("CUT")
def test_what_differs_is_named_with_its_line() -> None:
    verdict = verify(train(Detached), "cuda:0,1", dtype=torch.float32)
    assert verdict.exit_code == 1
    assert verdict.finding is not None
    assert (verdict.finding.cause.code, verdict.finding.name) == ("no-gradient", "net.0.weight")
    assert verdict.dtype == "float32"
    assert "gradient net.0.weight of Linear, test_in_process.py:" in str(verdict)


def test_a_learning_rate_that_differs_from_the_second_step_on() -> None:
    rates = iter([(0.1, 0.2), (0.1, 0.1)])

    def steps(_: Rig) -> None:
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight])
        for rate in next(rates):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()

    finding = verify(steps, "cpu").finding
    assert finding is not None
    assert (finding.cause.code, finding.step) == ("learning-rate", 2)
    assert "each update is \u00d72 that on one device" in finding.cause.text


def test_a_training_without_steps_cannot_be_compared() -> None:
    verdict = verify(lambda rig: None, "cpu")
    assert verdict.exit_code == 2
    assert "no optimizer's step was seen" in str(verdict)


def test_nothing_is_watched_afterwards() -> None:
    before = (nn.functional.dropout, torch.autograd.backward, torch.Tensor.float)
    with pytest.raises(ZeroDivisionError):
        verify(lambda rig: 1 / 0, "cpu")
    assert (nn.functional.dropout, torch.autograd.backward, torch.Tensor.float) == before
    assert torch.get_default_dtype() == torch.float32


def test_an_optimizer_with_a_closure_trains() -> None:
    def train(rig: Rig) -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        inputs = torch.randn(8, 3)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    assert verify(train, "cpu")


def test_random_numbers_in_a_forward_pass_cannot_be_compared() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + torch.randn_like(x))

    calls = []

    def train(rig: Rig) -> None:
        calls.append(rig)
        torch.manual_seed(0)
        model = Noisy(3, 1)
        torch.manual_seed(len(calls))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()

    verdict = verify(train, "cpu")
    assert verdict.exit_code == 2
    assert "draws random numbers in its forward pass" in str(verdict)


def adversaries(rig: Rig) -> None:
    """Two models of one class, whose parameters have the same names and partly the same shapes."""
    device = rig.lead.torch_device
    maker, judge = (
        nn.Sequential(nn.Linear(first, 8), nn.Tanh(), nn.Linear(8, last)).to(device)
        for first, last in ((4, FEATURES), (FEATURES, 1))
    )
    makes, judges = anyrig.spread(maker, rig), anyrig.spread(judge, rig)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (judge, maker)]
    data = TensorDataset(torch.randn(32, FEATURES), torch.randn(32, 4))
    criterion = nn.BCEWithLogitsLoss()
    for real, noise in DataLoader(data, 16):
        made = makes(noise.to(device))
        for optimizer, samples, kind in (
            (optimizers[0], real.to(device), 1.0),
            (optimizers[0], made.detach(), 0.0),
            (optimizers[1], made, 1.0),
        ):
            optimizer.zero_grad()
            scores = judges(samples)
            criterion(scores, torch.full_like(scores, kind)).backward()
            optimizer.step()


def student(rig: Rig) -> None:
    """A model that learns from another of the same class, which no optimizer has."""
    device = rig.lead.torch_device
    teacher, net = nn.Linear(FEATURES, 3).to(device), nn.Linear(FEATURES, 3).to(device)
    model = anyrig.spread(net, rig)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in DataLoader(torch.randn(32, FEATURES), 16):
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = teacher(x.to(device))
        nn.functional.mse_loss(model(x.to(device)), wanted).backward()
        optimizer.step()


@pytest.mark.gpus(2)
@pytest.mark.parametrize("run", [adversaries, student])
def test_models_with_the_same_names_keep_their_own_values(run: Callable[[Rig], None]) -> None:
    verdict = verify(run, "cuda:0,1")
    assert verdict, str(verdict)
