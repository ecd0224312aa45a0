"""The loss of parts, compared with the loss of the whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyrig.parallel.losses.parallel_loss import ParallelLoss
from anyrig.parallel.parts.scatter import scatter

DEVICES = ["cuda:0", "cuda:1", "cuda:2"]
ROWS, CLASSES = 12, 5


def scores(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, dtype=torch.float64)


def classes(*shape: int, ignored: float = 0.3, index: int = -100) -> Tensor:
    target = torch.randint(CLASSES, (ROWS, *shape))
    return target.masked_fill(torch.rand(target.shape) < ignored, index)


CLASS_WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)


def check(criterion: Any, output: Tensor, target: Tensor, shares: Any) -> None:
    """Value and gradients of the parts are those of the whole, to 1e-9."""
    output = output.detach().requires_grad_()
    whole = criterion(output, target)
    toward = torch.randn_like(whole)
    parameters = list(criterion.parameters()) if isinstance(criterion, nn.Module) else []
    expected = torch.autograd.grad(whole, [output, *parameters], toward)
    if isinstance(criterion, nn.Module):
        before = {name: value for name, value in vars(criterion).items() if name[0] != "_"}
    loss = ParallelLoss(criterion, "cuda:0")(scatter(output, DEVICES, shares), target)
    found = torch.autograd.grad(loss, [output, *parameters], toward.to("cuda:0"))
    torch.testing.assert_close(loss.cpu(), whole, rtol=1e-9, atol=1e-12)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    if isinstance(criterion, nn.Module):
        assert before == {n: v for n, v in vars(criterion).items() if n[0] != "_"}


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()
