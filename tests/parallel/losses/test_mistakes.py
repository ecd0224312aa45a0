"""Mistakes with `loss=` and `target=`, and the line that the message names for each."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel.losses.parallel_loss import ParallelLoss


class Summing(nn.Module):
    """Has an argument `target`, like a model that is spread with a loss."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return x + target


class Weighted(nn.Module):
    """A criterion whose constructor needs an argument."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight


class Failing(nn.Module):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        raise TypeError("of the module's own")


def told_by(model: Any, *inputs: Any, **kwargs: Any) -> str:
    """Return the error that a call raises, with its notes, as a terminal shows it."""
    with pytest.raises(TypeError) as caught:
        model(*inputs, **kwargs)
    return "".join(traceback.format_exception_only(caught.value))


@pytest.mark.gpus(2)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_target_that_is_not_given_as_target(devices: int) -> None:
    def spread(net: nn.Module, loss: Any = None) -> Any:
        return anyrig.spread(net, first_devices(devices), loss=loss)

    x, y = torch.ones(4, 2), torch.ones(4, 2)
    model = spread(nn.Sequential(nn.Linear(2, 2)), nn.MSELoss())
    assert "takes 2 positional arguments but 3 were given" in told_by(model, x, y)
    assert "write model(x, target=y) instead of model(x, y)]" in told_by(model, x, y)
    assert "write model(x, target=y) instead of model(x, labels=y)]" in told_by(model, x, labels=y)
    with torch.no_grad():
        assert "write model(x, target=y)" in told_by(model, x, y)
    for told in (
        told_by(spread(Summing(), nn.MSELoss()), x),  # whose forward has an argument target
        told_by(spread(nn.Linear(2, 2)), x, y),  # spread without a loss
        told_by(spread(Failing(), nn.MSELoss()), x, target=y),
        told_by(model, x, y, y),
    ):
        assert "[anyrig: the model was spread" not in told


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.MSELoss, r"the loss MSELoss is a class.* give an instance, nn.MSELoss\(\)$"),
        (Weighted, r"the loss Weighted is a class.* give an instance, Weighted\(…\)$"),
        ("mse", r"the loss 'mse' is of type str.* give for example nn.MSELoss\(\)$"),
    ],
)
def test_what_is_given_as_a_loss(loss: Any, message: str) -> None:
    with pytest.raises(SpreadError, match=message):
        anyrig.spread(nn.Linear(2, 2), "cpu", loss=loss)
    with pytest.raises(SpreadError, match=message):
        ParallelLoss(loss)


def test_what_is_for_ranks_has_no_effect_in_one_process() -> None:
    model = anyrig.spread(nn.Linear(2, 2), "cpu", plan=anyrig.Replicas(ddp={"bucket_cap_mb": 1}))
    model.register_comm_hook(None, print)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(SpreadError, match="ddp= does not take 'device_ids': spread decides it"):
        anyrig.spread(nn.Linear(2, 2), "cpu", plan=anyrig.Replicas(ddp={"device_ids": [0]}))
