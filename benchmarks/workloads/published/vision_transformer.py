"""Vision transformers, with the operators that timm's had when they were measured.

Those of timm before 0.8 computed attention in three operators, and PyTorch before 1.12 added the
bias of a linear layer on batches of tokens in a kernel of its own. Later ones fuse both. Before
PyTorch 1.10, a softmax kept its input for the backward pass, in addition to its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class BlockSize:
    """The size of a block, and what it drops.

    Attributes:
        width: the channels of a token.
        heads: the number of heads.
        dropout: the probability of all dropouts.
        is_fused: whether attention is one operator, and a linear layer one kernel.
    """

    width: int
    heads: int
    dropout: float = 0.0
    is_fused: bool = False


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def keep_until_backward(result: Tensor, x: Tensor) -> Tensor:
    """Return `result`, whose backward pass frees `x`."""
    return _Keep.apply(result, x)


class SeparateLinear(nn.Linear):
    """A linear layer whose bias is added by a kernel of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight).add_(self.bias)


def make_linear(size: BlockSize, inputs: int, outputs: int) -> nn.Linear:
    return (nn.Linear if size.is_fused else SeparateLinear)(inputs, outputs)


class Attention(nn.Module):
    def __init__(self, size: BlockSize) -> None:
        super().__init__()
        self.size = size
        self.inputs = make_linear(size, size.width, 3 * size.width)
        self.out = make_linear(size, size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        heads = self.size.heads
        parts = self.inputs(x).reshape(batch, tokens, 3, heads, width // heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.size.dropout if self.training else 0.0
        if self.size.is_fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        else:
            scores = (q @ k.transpose(-2, -1)) * (width // heads) ** -0.5
            shares = keep_until_backward(scores.softmax(-1), scores)
            mixed = functional.dropout(shares, dropout) @ v
        x = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return functional.dropout(x, dropout)


def drop_path(x: Tensor, probability: float) -> Tensor:
    """Drop whole samples, as stochastic depth does."""
    if probability == 0:
        return x
    kept = 1 - probability
    chosen = kept + torch.rand((x.shape[0], 1, 1), dtype=x.dtype, device=x.device)
    return x.div(kept) * chosen.floor_()


class Block(nn.Module):
    def __init__(self, size: BlockSize, dropped_paths: float = 0.0) -> None:
        super().__init__()
        self.size, self.dropped_paths = size, dropped_paths
        self.first_norm = nn.LayerNorm(size.width, 1e-6)
        self.attention = Attention(size)
        self.second_norm = nn.LayerNorm(size.width, 1e-6)
        self.up = make_linear(size, size.width, 4 * size.width)
        self.down = make_linear(size, 4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        paths = self.dropped_paths if self.training else 0.0
        dropout = self.size.dropout if self.training else 0.0
        x = x + drop_path(self.attention(self.first_norm(x)), paths)
        y = functional.dropout(functional.gelu(self.up(self.second_norm(x))), dropout)
        return x + drop_path(functional.dropout(self.down(y), dropout), paths)


class VisionTransformer(nn.Module):
    """A ViT of 12 blocks on patches of 16 x 16 that returns the class token, normalized."""

    def __init__(self, size: BlockSize, dropped_paths: float, side: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size.width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, size.width))
        self.positions = nn.Parameter(torch.zeros(1, (side // 16) ** 2 + 1, size.width))
        paths = [dropped_paths * index / 11 for index in range(12)]
        self.blocks = nn.ModuleList(Block(size, each) for each in paths)
        self.norm = nn.LayerNorm(size.width, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = x + self._positions_of(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, 0]

    def _positions_of(self, x: Tensor) -> Tensor:
        """Return the positions, resampled if the images are smaller."""
        if x.shape[1] == self.positions.shape[1]:
            return self.positions
        known, wanted = (round((each.shape[1] - 1) ** 0.5) for each in (self.positions, x))
        grid = self.positions[:, 1:].reshape(1, known, known, -1).permute(0, 3, 1, 2)
        grid = functional.interpolate(grid, size=(wanted, wanted), mode="bicubic")
        grid = grid.permute(0, 2, 3, 1).reshape(1, wanted * wanted, -1)
        return torch.cat([self.positions[:, :1], grid], 1)
