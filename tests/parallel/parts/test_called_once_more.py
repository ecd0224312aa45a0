"""The additional call that finds which dimension holds samples leaves no trace."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from output_modules import Returning
from torch import Tensor, nn
from torch.nn import functional
from trained_models import first_devices, on_lead

import anyrig
from anyrig.errors import BatchError

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
    pytest.mark.usefixtures("double_precision"),
]


class Stateful(nn.Module):
    """Has all kinds of state that a call can change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.last: Any = None
        self.drawn: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.replaced = self.replaced + 1
        self.last = len(x)
        self.drawn = random.random()
        return functional.dropout(self.norm(x))[None]


@pytest.mark.gpus(2)
def test_the_call_once_more_leaves_no_trace() -> None:
    """Parts of different sizes need no further call, and leave the same state behind."""
    left = []
    for shares in ([1, 1], [3, 5]):  # with 8 samples, only the first is unclear
        torch.manual_seed(0)
        random.seed(0)
        module = on_lead(Stateful())
        seen: list[int] = []
        module.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        model = anyrig.spread(module, first_devices(2), plan=anyrig.Replicas(shares=shares))
        x = torch.arange(32.0, device="cuda:0").view(8, 4) % 7
        found = model(x)
        assert found.requires_grad
        assert found.shape == (1, 8, 4)
        state = (module.calls, module.replaced, module.norm.num_batches_tracked)
        left.append((len(seen), [value.item() for value in state], torch.rand(1).item()))
        assert module.last == (4 if shares == [1, 1] else 3)
        # Two draws: the two replicas share Python's generator.
        assert random.getstate() == _after(random.Random(0), 2)
        mean = x[: module.last].mean(0)
        torch.testing.assert_close(module.norm.running_mean, 0.1 * mean)
    (calls, *same), (fewer, *others) = left
    assert (calls, fewer) == (3, 2)
    assert same == others


def _after(numbers: random.Random, draws: int) -> Any:
    for _ in range(draws):
        numbers.random()
    return numbers.getstate()


@pytest.mark.gpus(2)
def test_random_numbers_of_the_device_are_not_used_up() -> None:
    states = []
    for shares in ([1, 1], [4, 4]):
        torch.cuda.manual_seed_all(0)
        model = anyrig.spread(
            on_lead(Stateful()), first_devices(2), plan=anyrig.Replicas(shares=shares)
        )
        x = torch.randn(8, 4, device="cuda:0")
        if shares == [1, 1]:
            model(x)
        else:
            model.scattered(x)  # joins nothing, so it needs no further call
        states.append(torch.cuda.get_rng_state(0))
    assert torch.equal(*states)


@pytest.mark.gpus(2)
def test_weights_cast_in_the_call_once_more_are_not_kept() -> None:
    """Weights that autocast caches without gradients would get no gradient in the next forward."""
    module = on_lead(Returning(lambda y: y[None], 4)).float()
    model = anyrig.spread(module, first_devices(3), plan=anyrig.Replicas(shares=[1, 4, 4]))
    x = torch.randn(9, 4, device="cuda:0", dtype=torch.float32)
    with torch.autocast("cuda"):
        model(x[:2])  # on the lead, only the further call computes
        model(x).sum().backward()
    found = module.linear.weight.grad.clone()
    module.zero_grad()
    with torch.autocast("cuda"):
        module(x).sum().backward()
    torch.testing.assert_close(found, module.linear.weight.grad, rtol=1e-2, atol=1e-2)


@pytest.mark.gpus(2)
def test_a_module_that_cannot_be_called_once_more() -> None:
    """The refusal says so, and parts of different sizes need no further call."""

    def once(y: Tensor) -> Tensor:
        if len(y) == 3:
            raise ValueError("not three")
        return y[None]

    model = anyrig.spread(on_lead(Returning(once)), first_devices(2))
    words = (
        r"\(1, 2, 5\), \(1, 2, 5\) do not show which dimension has the 2 and 2 samples.*"
        r"with 3 samples.*ValueError: not three.*h\.transpose\(0, 1\).*different numbers"
    )
    with pytest.raises(BatchError, match=words):
        model(torch.randn(4, 4))
    unequal = anyrig.spread(
        on_lead(Returning(once)), first_devices(2), plan=anyrig.Replicas(shares=[1, 3])
    )
    assert unequal(torch.randn(8, 4)).shape == (1, 8, 5)


@pytest.mark.gpus(2)
def test_answers_are_for_calls_that_are_alike() -> None:
    def make(y: Tensor, last: bool) -> Tensor:
        return y.T.contiguous() if last else y

    one = on_lead(Returning(make, 4))
    model = anyrig.spread(one, first_devices(2))
    x = torch.randn(8, 4, device="cuda:0")
    for last in (True, False, True):
        torch.testing.assert_close(model(x, last), one(x, last), rtol=1e-9, atol=0)


@pytest.mark.gpus(2)
def test_answers_are_for_a_mode() -> None:
    class Modal(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y if self.training else y.T.contiguous()

    one = on_lead(Modal(4, 4))
    model = anyrig.spread(one, first_devices(2))
    x = torch.randn(8, 4, device="cuda:0")
    for training in (True, False, True):
        one.train(training)
        torch.testing.assert_close(model(x), one(x), rtol=1e-9, atol=0)
