"""A custom loss that cannot be computed from the losses of parts is refused in the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pipeline.beside_one_device import rig_of
from torch import Tensor, nn
from torch.nn import functional

import anyrig
from anyrig import Pipeline, Replicas
from anyrig.errors import BatchError

pytestmark = pytest.mark.gpus(2)

ROWS = 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Keeping(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = x.detach().mean(1, keepdim=True)
        return self.layers(x)


def batch() -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 3, dtype=torch.float64, generator=numbers)
    return x, torch.randn(ROWS, 2, dtype=torch.float64, generator=numbers)


def masked_mean(output: Tensor, target: Tensor) -> Tensor:
    mask = (target > 0).double()
    return ((output - target).square() * mask).sum() / mask.sum()


def selected_mean(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output[target > 0], target[target > 0])


def summed(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum()


def contrast(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output @ target.T, torch.arange(len(output)).to(output.device))


def root(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean().sqrt()


def largest(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().max()


def count_of_batch(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
    return (output - target).square().sum(), ROWS


def root_called_sum(output: Tensor, target: Tensor) -> Tensor:
    return root(output, target)


root_called_sum.reduction = "sum"  # type: ignore[attr-defined]

REFUSED = {
    masked_mean: r"not a mean over samples.*Return \(sum, count\)",
    selected_mean: r"not a mean over samples.*Return \(sum, count\)",
    summed: r"a sum over samples.*reduction = 'sum'",
    root: r"not a mean over samples",
    largest: r"not a mean over samples",
    count_of_batch: r"must return the sum and the count of its own samples",
    root_called_sum: r"it is not a sum over samples",
}


def mean(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def called_sum(output: Tensor, target: Tensor) -> Tensor:
    return summed(output, target)


called_sum.reduction = "sum"  # type: ignore[attr-defined]


def masked_sum(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    mask = (target > 0).double()
    return ((output - target).square() * mask).sum(), mask.sum()


def ignoring(output: Tensor, target: Tensor) -> Tensor:
    classes = torch.where(target[:, 0] > 0.2, (target[:, 1] > 0).long(), -100)
    return functional.cross_entropy(output, classes)


def each(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean(1)


class Moving(nn.Module):
    """A loss whose scale changes from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return mean(output, target) / self.calls


def with_noise(output: Tensor, target: Tensor) -> Tensor:
    return mean(output + torch.rand_like(output), target)


TAKEN: list[Callable[[Any, Any], Any]] = [mean, called_sum, masked_sum, ignoring, each]

PLANS = {
    "replicas": Replicas(shares=[1, 1]),
    "unequal": Replicas(shares=[3, 1]),
    "pipeline": Pipeline(micro_batches=2, schedule="gpipe"),
}
EVERY_PLAN = pytest.mark.parametrize("plan", PLANS)


def spread(plan: str, loss: Any, module: nn.Module | None = None) -> Any:
    return anyrig.spread((module or Net()).cuda(), rig_of(2), PLANS[plan], loss=loss)


@EVERY_PLAN
@pytest.mark.parametrize("loss", REFUSED, ids=lambda loss: loss.__name__)
def test_refused_in_the_first_step(plan: str, loss: Any) -> None:
    x, y = batch()
    model = spread(plan, loss)
    with pytest.raises(BatchError, match=rf"(?s){loss.__name__}.*{REFUSED[loss]}"):
        model(x, target=y)


@EVERY_PLAN
@pytest.mark.parametrize("loss", TAKEN, ids=lambda loss: loss.__name__)
def test_what_follows_from_parts_is_that_of_one_device(plan: str, loss: Any) -> None:
    x, y = batch()
    torch.manual_seed(0)
    one = Net()
    torch.manual_seed(0)
    model = spread(plan, loss)
    expected, found = loss(one(x), y), model(x, target=y)
    if isinstance(expected, tuple):
        expected = expected[0] / expected[1]
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-9)
    expected.sum().backward()
    found.sum().backward()
    for own, other in zip(one.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), own.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("plan", ["replicas", "unequal"])
def test_a_loss_that_reads_the_module_is_refused(plan: str) -> None:
    module = Keeping()

    def reads(output: Tensor, target: Tensor) -> Tensor:
        assert module.kept is not None
        return ((output - target) * module.kept).square().mean()

    model = spread(plan, reads, module)
    x, y = batch()
    with pytest.raises(BatchError, match=r"reads works for the . samples.*values of the whole"):
        model(x, target=y)


class KeepingNumber(Net):
    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layers(x)
        self.kept = output.square().mean()
        return output


@pytest.mark.parametrize("plan", ["replicas", "unequal"])
@pytest.mark.parametrize("rows", [4, ROWS])
def test_a_loss_that_reads_a_number_with_a_graph_is_refused(plan: str, rows: int) -> None:
    module = KeepingNumber()

    def reads(output: Tensor, target: Tensor) -> Tensor:
        assert module.kept is not None
        return (output - target).square().mean() + module.kept

    model = spread(plan, reads, module)
    x, y = batch()
    with pytest.raises(BatchError, match=r"reads uses a value .* kept \(MeanBackward0\)"):
        model(x[:rows], target=y[:rows])
    counted = anyrig.spread(module.cuda(), rig_of(1), Replicas(), loss=reads, accumulate=True)
    assert counted(x, target=y).requires_grad


def test_a_loss_with_a_penalty_of_parameters_is_taken() -> None:
    module = Net()

    def penalised(output: Tensor, target: Tensor) -> Tensor:
        penalty = sum(each.square().sum().cpu() for each in module.parameters())
        return (output - target).square().mean().cpu() + penalty

    model = spread("replicas", penalised, module)
    x, y = batch()
    assert model(x, target=y).requires_grad


def test_a_loss_that_differs_from_call_to_call_is_taken_and_keeps_its_state() -> None:
    x, y = batch()
    loss = Moving().cuda()
    model = spread("replicas", loss)
    model(x, target=y)
    assert loss.calls == 1
    assert torch.isfinite(spread("replicas", with_noise)(x, target=y))


def test_random_numbers_are_those_without_a_check() -> None:
    x, y = batch()
    model = spread("replicas", with_noise)
    torch.manual_seed(1)
    first = model(x, target=y)
    torch.manual_seed(1)
    assert torch.equal(model(x, target=y), first)


def test_the_loss_is_checked_once() -> None:
    x, y = batch()
    calls: list[int] = []

    def counted(output: Tensor, target: Tensor) -> Tensor:
        calls.append(len(output))
        return mean(output, target)

    model = spread("replicas", counted)
    model(x, target=y)
    assert sorted(calls) == [2, 2, 4, 4, 4, 4, 4, 4, 4]
    calls.clear()
    model(x, target=y)
    assert calls == [4, 4]


def test_one_device_computes_any_loss() -> None:
    x, y = batch()
    model = anyrig.spread(Net().cuda(), rig_of(1), loss=masked_mean)
    assert torch.isfinite(model(x, target=y))


class Tripling(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.mul_(3))


def test_the_check_leaves_arguments_as_they_are() -> None:
    x, y = batch()
    module = Tripling()
    alone = mean(module(x.clone()), y)
    found = spread("replicas", mean, module)(x.cuda(), target=y)
    torch.testing.assert_close(found.cpu(), alone, rtol=1e-9, atol=0)


def test_a_loss_is_checked_as_soon_as_a_part_has_three_samples() -> None:
    def root(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean().sqrt()

    x, y = batch()
    model = spread("replicas", root)
    model(x[:4], target=y[:4])
    with pytest.raises(BatchError, match=r"root of 4 samples .* not a mean over samples"):
        model(x, target=y)


@EVERY_PLAN
def test_a_loss_with_a_graph_of_earlier_is_refused(plan: str) -> None:
    module = Net()
    penalty = sum(each.square().sum() for each in module.cuda().parameters())

    def penalised(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean() + penalty.to(output.device)

    x, y = batch()
    with pytest.raises(BatchError, match="penalised uses a value that the module has computed"):
        spread(plan, penalised, module)(x, target=y)
