"""The line that clips gradients is the same for every way of spreading a model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import anyrig
from anyrig.parallel.plans import Pipeline, Plan, Replicas

pytestmark = pytest.mark.gpus(2)


class Own(nn.Linear):
    def clip_grad_norm_(self, max_norm: float, norm_type: float, error: bool) -> Tensor:
        return torch.tensor(max_norm)


@pytest.mark.parametrize("norm_type", [2.0, torch.inf])
@pytest.mark.parametrize("plan", [Replicas(), Pipeline(), Pipeline(micro_batches=1)], ids=str)
@pytest.mark.parametrize("rig", ["cpu", "cuda:0,1"])
def test_norm_and_gradients_are_those_of_one_device(rig: str, plan: Plan, norm_type: float) -> None:
    torch.manual_seed(0)
    one = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))).double()
    model = anyrig.spread(copy.deepcopy(one), rig, plan=plan, loss=nn.MSELoss())
    x, y = torch.randn(2, 6, 4, dtype=torch.float64)
    model(x, target=y).backward()
    nn.MSELoss()(one(x), y).backward()
    expected = nn.utils.clip_grad_norm_(one.parameters(), 0.01, norm_type)
    found = model.clip_grad_norm_(0.01, norm_type)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=0)
    for one_parameter, parameter in zip(one.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), one_parameter.grad, rtol=1e-12, atol=1e-15)


def test_a_gradient_that_is_not_finite() -> None:
    model = anyrig.spread(nn.Linear(2, 2), "cpu")
    (model(torch.ones(1, 2)) * torch.inf).sum().backward()
    with pytest.raises(RuntimeError, match="non-finite"):
        model.clip_grad_norm_(1.0, error_if_nonfinite=True)
    assert not model.clip_grad_norm_(1.0).isfinite()


def test_a_method_of_the_module_is_called() -> None:
    assert anyrig.spread(Own(2, 2), "cpu").clip_grad_norm_(3.0) == 3.0
