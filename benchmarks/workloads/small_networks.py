"""Networks small enough to compute on the host."""

from __future__ import annotations

from torch import nn


def perceptron(layers: int, width: int, classes: int) -> nn.Module:
    """Return a perceptron that maps vectors (batch, width) to logits (batch, classes)."""
    hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, classes))


def convolutional(classes: int) -> nn.Module:
    """Return a network that maps images (batch, 3, any, any) to logits (batch, classes)."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 16, classes),
    )
