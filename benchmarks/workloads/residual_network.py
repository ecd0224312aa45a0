"""A convolutional network with the layers and sizes of ResNet-50 (arXiv:1512.03385)."""

from __future__ import annotations

from torch import Tensor, nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride
EXPANSION = 4


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = EXPANSION * width
        self.path = nn.Sequential(
            *_normed(channels, width, 1),
            nn.ReLU(inplace=True),
            *_normed(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_normed(width, wide, 1),
        )
        same = stride == 1 and channels == wide
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*_normed(channels, wide, 1, stride))
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.path(x) + self.shortcut(x))


def _normed(channels: int, width: int, side: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(channels, width, side, stride, side // 2, bias=False)
    return convolution, nn.BatchNorm2d(width)


class ResidualNetwork(nn.Sequential):
    """ResNet-50: maps images of shape (batch, 3, 224, 224) to logits of shape (batch, classes)."""

    def __init__(self, classes: int = 1000) -> None:
        channels = STAGES[0][0]
        parts: list[nn.Module] = [
            *_normed(3, channels, 7, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        for width, blocks, stride in STAGES:
            for block in range(blocks):
                parts.append(Bottleneck(channels, width, stride if block == 0 else 1))
                channels = EXPANSION * width
        super().__init__(
            *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
        )
