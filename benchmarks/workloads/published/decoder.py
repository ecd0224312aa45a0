"""Decoders as transformers 4.48 computes them with flash attention: Mistral-7B and PowerLM-3b.

Weights are bfloat16, without autocast. Adapters are those of PEFT 0.13: float32, rank 16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class DecoderSize:
    """The sizes of a decoder.

    Attributes:
        scales: whether embeddings, residuals and logits are scaled, as in Granite's models.
        attention_dropout: that of the configuration; PowerLM-3b's is taken from granite-3.2-2b,
            which has the same architecture.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    words: int
    is_tied: bool = False
    scales: bool = False
    attention_dropout: float = 0.0


SIZES = {
    "Mistral-7B": DecoderSize(32, 4096, 32, 8, 14336, 32000),
    "PowerLM-3b": DecoderSize(40, 2304, 36, 36, 9216, 49152, True, True, 0.1),
}
Linear = Callable[[int, int], nn.Module]


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.frozen = linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Linear(inputs, 16, bias=False, dtype=torch.float32)
        self.up = nn.Linear(16, outputs, bias=False, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.frozen(x)
        change = self.up(self.down(functional.dropout(x.float(), 0.1)))
        return (y + change * 1.0).to(y.dtype)


def linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs, bias=False)


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


class Layer(nn.Module):
    def __init__(self, size: DecoderSize, project: Linear) -> None:
        super().__init__()
        width, head = size.width, size.width // size.heads
        self.size, self.head = size, head
        self.q, self.out = project(width, width), project(width, width)
        self.k, self.v = (project(width, size.key_heads * head) for _ in range(2))
        self.gate, self.up = linear(width, size.inner), linear(width, size.inner)
        self.down = linear(size.inner, width)
        self.first_norm, self.second_norm = RmsNorm(width), RmsNorm(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._scaled(self._attend(self.first_norm(x), cos, sin))
        y = self.second_norm(x)
        return x + self._scaled(self.down(functional.silu(self.gate(y)) * self.up(y)))

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            project(x).view(batch, tokens, -1, self.head).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(
            rotate(q, cos, sin),
            rotate(k, cos, sin),
            v,
            dropout_p=self.size.attention_dropout,
            is_causal=True,
            enable_gqa=self.size.key_heads < self.size.heads,
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))

    def _scaled(self, x: Tensor) -> Tensor:
        return x * 0.22 if self.size.scales else x


class Decoder(nn.Module):
    def __init__(self, size: DecoderSize, project: Linear) -> None:
        super().__init__()
        self.size = size
        self.words = nn.Embedding(size.words, size.width)
        self.layers = nn.ModuleList(Layer(size, project) for _ in range(size.layers))
        self.norm = RmsNorm(size.width)
        self.classify = linear(size.width, size.words)
        if size.is_tied:
            self.classify.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        if self.size.scales:
            x = x * 12.0
        x.requires_grad_()  # so that adapters get gradients through checkpoints
        angles = torch.zeros(
            1, 1, ids.shape[1], self.size.width // self.size.heads, device=x.device
        )
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=True)
        logits = self.classify(self.norm(x))
        if self.size.scales:
            logits = logits / 9.0
        logits = logits.float()[:, :-1].contiguous()
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def train(steps: int, model: str, batch: int, *, adapts: bool) -> None:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        module = Decoder(SIZES[model], Adapted if adapts else linear)
    if adapts:
        for parameter in module.parameters():
            parameter.requires_grad_(parameter.dtype == torch.float32)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, weight_decay=0.01, eps=1e-4)
    ids = torch.zeros(batch, 4096, dtype=torch.long, device="cuda")
    for _ in range(steps):
        module(ids).backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
