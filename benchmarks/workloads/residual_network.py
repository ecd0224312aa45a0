"""A convolutional network with the layers and sizes of ResNet-50 (arXiv:1512.03385), or deeper.

`ResidualNetwork` can have grouped convolutions, as ResNeXt (arXiv:1611.05431), and the weights of
channels that squeeze-and-excitation computes (arXiv:1709.01507).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

WIDTHS, STRIDES = (64, 128, 256, 512), (1, 2, 2, 2)
EXPANSION, REDUCTION = 4, 16


class SqueezeAndExcitation(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weights = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // REDUCTION, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels // REDUCTION, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weights(x)


class Bottleneck(nn.Module):
    def __init__(
        self, channels: int, width: int, stride: int, groups: int = 1, *, excites: bool = False
    ) -> None:
        super().__init__()
        wide = EXPANSION * width
        inner = width if groups == 1 else 2 * width
        self.path = nn.Sequential(
            *_normed(channels, inner, 1),
            nn.ReLU(inplace=True),
            *_normed(inner, inner, 3, stride, groups),
            nn.ReLU(inplace=True),
            *_normed(inner, wide, 1),
            *([SqueezeAndExcitation(wide)] if excites else []),
        )
        same = stride == 1 and channels == wide
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*_normed(channels, wide, 1, stride))
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.path(x) + self.shortcut(x))


def _normed(
    channels: int, width: int, side: int, stride: int = 1, groups: int = 1
) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(channels, width, side, stride, side // 2, groups=groups, bias=False)
    return convolution, nn.BatchNorm2d(width)


class ResidualNetwork(nn.Sequential):
    """Maps images of shape (batch, 3, side, side) to logits of shape (batch, classes).

    Args:
        classes: the number of classes.
        blocks: the blocks of each stage. The default is ResNet-50's.
        groups: the groups of the 3x3 convolutions, which are twice as wide if there are several.
        excites: whether blocks have squeeze-and-excitation.
        is_small: whether the first layers keep the size of images, for images of 32 x 32.
    """

    def __init__(
        self,
        classes: int = 1000,
        blocks: Sequence[int] = (3, 4, 6, 3),
        groups: int = 1,
        *,
        excites: bool = False,
        is_small: bool = False,
    ) -> None:
        channels = WIDTHS[0]
        side, stride = (3, 1) if is_small else (7, 2)
        parts: list[nn.Module] = [*_normed(3, channels, side, stride), nn.ReLU(inplace=True)]
        if not is_small:
            parts.append(nn.MaxPool2d(3, 2, 1))
        for width, count, stride in zip(WIDTHS, blocks, STRIDES, strict=True):
            for block in range(count):
                step = stride if block == 0 else 1
                parts.append(Bottleneck(channels, width, step, groups, excites=excites))
                channels = EXPANSION * width
        super().__init__(
            *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
        )
