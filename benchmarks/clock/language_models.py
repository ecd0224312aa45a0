"""The float32 language models that NeuSight measured, with the operators that it measured.

They are written out as transformers 4.38 computes them with eager attention, since later versions
use other operators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

LOWEST = -3e38


@dataclass(frozen=True)
class Size:
    """The sizes of one of NeuSight's model configurations."""

    family: str
    layers: int
    width: int
    heads: int
    words: int
    positions: int


SIZES = {
    "gpt2_large": Size("gpt", 36, 1280, 20, 50257, 1024),
    "gpt3_xl": Size("gpt", 24, 3072, 24, 50257, 2048),
    "gpt3_27": Size("gpt", 32, 2560, 32, 50257, 2048),
    "bert_large": Size("bert", 24, 1024, 16, 30522, 512),
    "opt_13": Size("opt", 24, 2048, 32, 50272, 2048),
}


class Conv1D(nn.Module):
    """A linear layer whose weight is stored transposed."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], -1)


class Block(nn.Module):
    linear: ClassVar[type[nn.Module]] = nn.Linear

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.out = self.linear(width, width)
        self.up, self.down = self.linear(width, 4 * width), self.linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        batch, _, length, _ = x.shape
        return x.transpose(1, 2).contiguous().view(batch, length, -1)


class GptBlock(Block):
    linear = Conv1D

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.projections = Conv1D(size.width, 3 * size.width)
        visible = torch.empty(1, 1, size.positions, size.positions, dtype=torch.bool)
        self.register_buffer("visible", visible)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        length, width = x.shape[1:]
        q, k, v = map(self.split, self.projections(self.first_norm(x)).split(width, 2))
        scores = q @ k.transpose(-1, -2)
        scores = scores / torch.full([], 8.0, device=x.device)
        lowest = torch.full([], LOWEST, device=x.device)
        scores = torch.where(self.visible[:, :, :length, :length], scores, lowest)
        weights = self.drop(functional.softmax(scores, -1))
        x = x + self.drop(self.out(self.merge(weights @ v)))
        y = self.up(self.second_norm(x))
        inner = math.sqrt(2 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))
        return x + self.drop(self.down(0.5 * y * (1.0 + torch.tanh(inner))))


class SeparateBlock(Block):
    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.q, self.k, self.v = (nn.Linear(size.width, size.width) for _ in range(3))


class OptBlock(SeparateBlock):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        y = self.first_norm(x)
        q = self.q(y) * 0.125
        q, k, v = (
            self.split(each).contiguous().view(batch * self.heads, length, -1)
            for each in (q, self.k(y), self.v(y))
        )
        scores = torch.bmm(q, k.transpose(1, 2)).view(batch, self.heads, length, length) + mask
        scores = torch.max(scores, torch.full([], LOWEST, device=x.device))
        weights = functional.softmax(scores.view(-1, length, length), -1)
        mixed = torch.bmm(weights, v).view(batch, self.heads, length, -1)
        x = x + self.drop(self.out(self.merge(mixed)))
        return x + self.drop(self.down(functional.relu(self.up(self.second_norm(x)))))


class BertBlock(SeparateBlock):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        weights = self.drop(functional.softmax(q @ k.transpose(-1, -2) / 8.0 + mask, -1))
        x = self.first_norm(self.drop(self.out(self.merge(weights @ v))) + x)
        return self.second_norm(self.drop(self.down(functional.gelu(self.up(x)))) + x)


BLOCKS = {"gpt": GptBlock, "opt": OptBlock, "bert": BertBlock}


class LanguageModel(nn.Module):
    def __init__(self, size: Size, *, trains: bool) -> None:
        super().__init__()
        self.is_bert = size.family == "bert"
        # BERT classifies in inference, and predicts words in training.
        self.predicts = trains or not self.is_bert
        self.words = nn.Embedding(size.words, size.width)
        self.positions = nn.Embedding(size.positions + 2, size.width)
        self.kinds = nn.Embedding(2, size.width) if self.is_bert else None
        self.blocks = nn.ModuleList(BLOCKS[size.family](size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.drop = nn.Dropout(0.1)
        self.pool = nn.Linear(size.width, size.width)
        self.transform = nn.Linear(size.width, size.width)
        self.transform_norm = nn.LayerNorm(size.width)
        self.classes = nn.Linear(size.width, 2)
        self.head = nn.Linear(size.width, size.words, bias=self.is_bert)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        x = self.words(ids) + self.positions(torch.arange(length, device=ids.device)[None])
        if self.kinds is not None:
            x = self.drop(self.norm(x + self.kinds(torch.zeros_like(ids))))
        mask = torch.zeros(batch, 1, 1 if self.is_bert else length, length, device=ids.device)
        for block in self.blocks:
            x = block(x, mask)
        if not self.is_bert:
            return self.head(self.norm(x))
        pooled = self.classes(torch.tanh(self.pool(x[:, 0])))
        if not self.predicts:
            return pooled
        return self.head(self.transform_norm(functional.gelu(self.transform(x))))


def step_ms(name: str, *, trains: bool, length: int, batch: int) -> float:
    """Return the time of a forward pass, and of a backward pass if it trains, in milliseconds."""
    with torch.device("cuda"):
        model = LanguageModel(SIZES[name], trains=trains).train(trains)
    ids = torch.ones(batch, length, dtype=torch.long, device="cuda")
    times = []
    for _ in range(2):
        model.zero_grad(set_to_none=False)
        with torch.set_grad_enabled(trains):
            output, forward_ms = _timed(lambda: model(ids))
        backward_ms = 0.0
        if trains:
            loss = functional.cross_entropy(output.view(-1, output.size(-1)), ids.view(-1))
            _, backward_ms = _timed(loss.backward)
            loss = None
        output = None
        times.append(forward_ms + backward_ms)
    return times[-1]


def _timed(call):  # type: ignore[no-untyped-def]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    result = call()
    end.record()
    torch.cuda.synchronize()
    return result, start.elapsed_time(end)
