"""GPT-2 of 124 million parameters, and batches of random tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

WIDTH, HEADS, LAYERS, LENGTH, WORDS = 768, 12, 12, 1024, 50257


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, _ = x.shape
        parts = self.attention(self.norm_1(x)).split(WIDTH, dim=-1)
        q, k, v = (part.view(samples, length, HEADS, -1).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(samples, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (samples, length, words) for tokens of shape (samples, length)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def load_tokens(samples: int) -> DataLoader:
    """Return 4 batches of `samples` pairs: tokens, and the tokens that follow."""
    text = torch.randint(WORDS, (4 * samples, LENGTH + 1))
    return DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), samples)
