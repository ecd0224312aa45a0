"""The encoder of latent diffusion's autoencoder KL-16, which MAR uses for its latents."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS = (128, 128, 256, 256, 512)
LATENTS = 16


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(swish(self.first_norm(x)))
        return self.skip(x) + self.second(swish(self.second_norm(y)))


class Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.q, self.k, self.v, self.out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (convolve(y).flatten(2) for convolve in (self.q, self.k, self.v))
        weights = functional.softmax(torch.bmm(q.transpose(1, 2), k) * q.shape[1] ** -0.5, 2)
        return x + self.out(torch.bmm(v, weights.transpose(1, 2)).view_as(x))


class Downsampling(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(channels, channels, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(functional.pad(x, (0, 1, 0, 1)))


def make_encoder() -> nn.Sequential:
    """Return a module that takes images of 256 pixels to means and log-variances of latents."""
    parts: list[nn.Module] = [nn.Conv2d(3, CHANNELS[0], 3, padding=1)]
    inputs = CHANNELS[0]
    for level, channels in enumerate(CHANNELS):
        is_last = level == len(CHANNELS) - 1
        for _ in range(2):
            parts += [Residual(inputs, channels), *([Attention(channels)] if is_last else [])]
            inputs = channels
        parts += [] if is_last else [Downsampling(channels)]
    parts += [Residual(inputs, inputs), Attention(inputs), Residual(inputs, inputs)]
    parts += [nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, 2 * LATENTS, 3, padding=1)]
    return nn.Sequential(*parts, nn.Conv2d(2 * LATENTS, 2 * LATENTS, 1))
