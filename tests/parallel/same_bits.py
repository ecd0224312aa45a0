"""A training script whose bits are compared from run to run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

RUNS = int(os.environ.get("ANYRIG_TEST_RUNS", "2"))


class Everything(nn.Module):
    """Layers of many kinds: with statistics, random numbers, and indices that repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.near = nn.Conv1d(16, 32, 3, padding=1)
        self.norm = nn.BatchNorm1d(32)
        self.far = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        words = self.words(x).transpose(1, 2)
        near = torch.relu(self.norm(self.near(words))).transpose(1, 2)
        return self.last(self.far(near)).mean(1)


def batches(device: Any, count: int = 5, rows: int = 37) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(50, (rows, 12), generator=generator).to(device),
            torch.randint(10, (rows,), generator=generator).to(device),
        )
        for _ in range(count)
    ]


def digest(tensors: Iterable[Tensor]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
