"""The example of a custom engine; see docs/architecture.md."""

import copy
from pathlib import Path

import pytest
import torch
from pipeline.beside_one_device import rig_of
from repeated_engine import spread_repeated
from torch import nn

import anyrig
from anyrig.errors import SpreadError

pytestmark = pytest.mark.gpus(2)


class Worn(nn.Module):
    """Computes other numbers on the second device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1e-3 * (x.device.index or 0)


def test_it_trains_as_one_device_does() -> None:
    alone = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    model = spread_repeated(copy.deepcopy(alone), rig_of(2), nn.MSELoss())
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    losses = model(x, target=y), nn.functional.mse_loss(alone(x), y)
    for loss in losses:
        loss.backward()
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-12)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_what_it_does_not_mention_has_an_answer() -> None:
    model = spread_repeated(nn.Linear(3, 4), rig_of(2))
    assert [*model.state_dict()] == ["weight", "bias"]
    assert "cuda:0, cuda:1" in str(anyrig.explain(model))
    with model.no_sync(), model.join():
        model(torch.ones(2, 3)).sum().backward()
    assert float(model.clip_grad_norm_(1.0)) > 1
    assert copy.deepcopy(model)(torch.ones(2, 3)).shape == (2, 4)
    with pytest.raises(
        SpreadError, match=r"scattered\(\) returns .* but a RepeatedEngine computes"
    ):
        model.scattered(torch.ones(2, 3))


def test_a_device_that_computes_otherwise_is_named() -> None:
    model = spread_repeated(Worn(), rig_of(2))
    with pytest.raises(SpreadError, match=r"cuda:1 computes another output than cuda:0.*0\.001"):
        model(torch.ones(2, 3))


def test_the_example_is_short() -> None:
    source = Path(__file__).with_name("repeated_engine.py").read_text()
    assert len(source.splitlines()) <= 120
