"""nanoGPT as its first release computed it: without flash attention, with the GELU of GPT-2."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, LENGTH, WORDS = 768, 12, 12, 1024, 50304


class Norm(nn.Module):
    """A layer norm without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = Norm(), Norm()
        self.projections = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.register_buffer("visible", torch.empty(1, 1, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
            for part in self.projections(self.first_norm(x)).split(width, 2)
        )
        scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.visible[:, :, :length, :length] == 0, -math.inf)
        mixed = functional.softmax(scores, -1) @ v
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))
        y = self.up(self.second_norm(x))
        inner = math.sqrt(2 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))
        return x + self.down(0.5 * y * (1.0 + torch.tanh(inner)))


class NanoGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1), ignore_index=-1)


def iteration_ms(batch: int, *, is_compiled: bool, count: int = 3) -> float:
    """Return the milliseconds of a training iteration, as nanoGPT's ``bench.py`` measures it."""
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device("cuda"):
        model = NanoGpt()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, betas=(0.9, 0.95))
    call = torch.compile(model) if is_compiled else model
    ids = torch.ones(batch, LENGTH, dtype=torch.long, device="cuda")

    def iterate() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = call(ids, ids)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    for _ in range(2):
        iterate()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        iterate()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count
