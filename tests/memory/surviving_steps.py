"""A small model, its batch and loss, and allocations that fail, for tests of `survive`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from anyrig.virtual import installation
from anyrig.virtual.build import load_extension


def fail_allocation(number: int, device: int = 0) -> None:
    """Let the `number`-th allocation from now fail on a virtual GPU."""
    if installation() is None:
        pytest.skip("only a virtual GPU fails a given allocation")
    load_extension().fail_allocation(number, device)


class Net(nn.Module):
    """Layers of several kinds, and a buffer that counts samples."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), *layers, nn.Linear(8, 3)
        )
        self.register_buffer("samples", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.samples += len(x)
        y: Tensor = self.layers(x)
        return y


def batch(samples: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 6).cuda(), torch.randint(3, (samples,)).cuda()


def loss_with(net: nn.Module) -> Callable[..., Tensor]:
    return lambda x, y: nn.functional.cross_entropy(net(x), y)


def gradients(net: nn.Module) -> list[Tensor]:
    return [parameter.grad.cpu() for parameter in net.parameters() if parameter.grad is not None]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def expected_gradients(net: nn.Module, loss: Tensor) -> list[Tensor]:
    loss.backward()
    expected = gradients(net)
    net.zero_grad()
    return expected


def notes_of(error: BaseException) -> str:
    return "\n".join(map(str, getattr(error, "__notes__", error.args)))
