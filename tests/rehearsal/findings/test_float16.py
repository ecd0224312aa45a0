"""R09 on a GPU whose matrix units take float16, and neither TF32 nor bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from promises import Layers, rehearse, seconds_of
from torch import Tensor, nn

HALF = torch.float16


class Encoder(nn.Module):
    """Layers of a transformer, and the logits of a small vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.layers = nn.Sequential(nn.TransformerEncoder(layer, 6), nn.Linear(512, 8192))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Filters(nn.Module):
    """Convolutions with the channels last."""

    def __init__(self, has_norms: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(4):
            norms = [nn.BatchNorm2d(128)] if has_norms else []
            layers += [nn.Conv2d(128, 128, 3, padding=1), *norms, nn.ReLU()]
        self.layers = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.to(memory_format=torch.channels_last))


# What makes each model, the shape of its batch, and how large a part of what float16 saves is
# estimated at least: the norms and activations of the last are a large part of its step.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "linear layers": (partial(Layers, dtype=torch.float32), (2048, 4096), 0.95),
    "transformer": (Encoder, (16, 256, 512), 0.9),
    "convolutions": (Filters, (32, 128, 56, 56), 0.9),
    "with batch norms": (partial(Filters, has_norms=True), (32, 128, 56, 56), 0.7),
}


def training(name: str, remedied: bool) -> Callable[[], None]:
    """Return a training step in float32, or with the remedy of the finding."""
    make, shape, _ = MODELS[name]
    model, batch = make().cuda(), torch.ones(shape, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=remedied)

    def step() -> None:
        with torch.autocast("cuda", HALF, enabled=remedied):
            loss = model(batch).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


@pytest.mark.parametrize("name", MODELS)
def test_the_estimate_is_about_what_float16_saves(name: str) -> None:
    before, after = rehearse(training(name, False)), rehearse(training(name, True))
    (finding,) = (each for each in before.findings if each.code == "R09")
    assert before.findings[0] is finding
    assert "R09" not in {each.code for each in after.findings}
    assert finding.is_estimate
    assert 'torch.autocast("cuda", torch.float16)' in finding.remedy
    assert 'torch.amp.GradScaler("cuda")' in finding.remedy
    assert "bfloat16" not in finding.remedy
    assert "tf32" not in finding.remedy.lower()
    saved = seconds_of(before) - seconds_of(after)
    assert finding.saved_seconds is not None
    assert MODELS[name][2] * saved <= finding.saved_seconds <= 1.05 * saved


def test_a_model_in_half_precision_has_no_finding() -> None:
    model, batch = Layers(2048, 4, HALF).cuda(), torch.ones(2048, 2048, device="cuda", dtype=HALF)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(batch).sum().backward()
        optimizer.step()

    assert "R09" not in {each.code for each in rehearse(step).findings}
