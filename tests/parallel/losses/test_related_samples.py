"""A module that relates samples to each other is refused in a first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pipeline.beside_one_device import rig_of
from reduced_errors import Net, batch, total
from torch import Tensor, nn

import anyrig
from anyrig import Pipeline, Replicas
from anyrig.errors import BatchError

pytestmark = pytest.mark.gpus(2)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(0)


def centred(x: Tensor) -> Any:
    return {"scores": [x, x - x.mean(0)]}


def attending(x: Tensor) -> Tensor:
    return (x @ x.T).softmax(1) @ x


def reversed_samples(x: Tensor) -> Tensor:
    return x.flip(0)


def scaled(x: Tensor) -> Tensor:
    return x / x.detach().abs().max()


class Relating(nn.Module):
    def __init__(self, relate: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        self.relate = relate

    def forward(self, x: Tensor) -> Any:
        return self.relate(self.last(self.first(x).tanh()))


@pytest.mark.parametrize("plan", [Replicas(), Pipeline(micro_batches=2)])
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize(
    "relate",
    [softmax, centred, attending, reversed_samples, scaled],
    ids=lambda each: each.__name__,
)
def test_samples_that_are_related_are_refused(
    relate: Callable[[Tensor], Any], learns: bool, plan: Replicas | Pipeline
) -> None:
    x, _ = batch()
    if isinstance(plan, Pipeline):
        plan = Pipeline(micro_batches=2, example=((x,), {}))
    model = anyrig.spread(Relating(relate), rig_of(2), plan)
    place = r" \['scores'\]\[1\]" if relate is centred else ""
    with (
        torch.set_grad_enabled(learns),
        pytest.raises(
            BatchError, match=rf"Relating returns a tensor{place} of shape \(4, 3\), whi"
        ),
    ):
        model(x)


@pytest.mark.parametrize("loss", [nn.MSELoss(), lambda output, target: (output - target).mean()])
def test_related_samples_are_refused_beside_a_loss(loss: Any) -> None:
    x, _ = batch()
    model = anyrig.spread(Relating(softmax), rig_of(2), Replicas(), loss=loss)
    with pytest.raises(BatchError, match="the module relates samples to each other"):
        model(x, target=x)


@pytest.mark.parametrize(
    "module",
    [nn.LSTM(3, 3), nn.TransformerEncoderLayer(3, 1, 8)],
    ids=lambda each: type(each).__name__,
)
def test_sequences_in_the_first_dimension_are_refused_with_the_cure(module: nn.Module) -> None:
    x = torch.randn(8, 4, 3)
    model = anyrig.spread(module, rig_of(2), Replicas())
    with pytest.raises(
        BatchError, match=r"without batch_first=True, say so: spread\(module, dim=1\)"
    ):
        model(x)
    model = anyrig.spread(module, rig_of(2), Replicas(), dim=1)
    assert model(x) is not None


def test_what_has_no_gradient_may_relate_samples_in_training() -> None:
    def with_metric(x: Tensor) -> Any:
        return x, x.detach().softmax(0), x.detach().std()

    x, _ = batch()
    assert len(anyrig.spread(Relating(with_metric), rig_of(2), Replicas())(x)) == 3


def test_quantised_layers_are_not_compared() -> None:
    class Scaled(Relating):
        def __init__(self) -> None:
            super().__init__(scaled)
            numbers = torch.ones(2, dtype=torch.int8)
            self.quantised = nn.Parameter(numbers, requires_grad=False)

    x, _ = batch()
    assert anyrig.spread(Scaled(), rig_of(2), Replicas())(x).requires_grad


def test_who_accepts_local_statistics_gets_them() -> None:
    plan = Replicas(local_statistics=True)
    x, mask = batch()
    assert anyrig.spread(Relating(softmax), rig_of(2), plan)(x).requires_grad
    assert anyrig.spread(Net(total), rig_of(2), plan)(x, mask).requires_grad
    with pytest.raises(BatchError, match=r"use plan=Replicas\(local_statistics=True\)"):
        anyrig.spread(Relating(softmax), rig_of(2), Replicas())(x)
