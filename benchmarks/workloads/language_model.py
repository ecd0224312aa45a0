"""A decoder-only language model: causal attention, feed-forward layers and an output head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class LanguageModelSize:
    """The sizes of a `LanguageModel`; the defaults give 166 million parameters."""

    words: int = 32_000
    width: int = 1024
    layers: int = 8
    heads: int = 16
    tokens: int = 512


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.queries_keys_values(self.attention_norm(x))
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in projected.chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.feed_forward_norm(x))))


class LanguageModel(nn.Module):
    """A language model that maps words of shape (batch, tokens) to logits.

    The logits have the shape (batch, words, tokens), as `nn.CrossEntropyLoss` expects.
    """

    def __init__(self, size: LanguageModelSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.words, size.width)
        self.positions = nn.Parameter(torch.zeros(size.tokens, size.width))
        self.layers = nn.ModuleList(Layer(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).transpose(1, 2)
