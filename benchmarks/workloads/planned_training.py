"""A training run whose plan is left to ANYRIG_PLAN: one of the programs of `plan_regret`.

Arguments: the program. `PROGRAMS` lists them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import anyrig

sys.path.insert(0, str(Path(__file__).parents[1]))
from workloads.language_model import LanguageModel, LanguageModelSize
from workloads.published.vision_transformer import Block, BlockSize
from workloads.residual_network import ResidualNetwork

STEPS = 4


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """As many samples as a few steps need, made when they are asked for."""

    def __init__(self, batch: int, make: Callable[[], tuple[Tensor, Tensor]]) -> None:
        self.count, self.make = batch * STEPS, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.make()


def language_model(batch: int, size: LanguageModelSize) -> tuple[nn.Module, Samples]:
    words = torch.zeros(size.tokens, dtype=torch.long, device="cpu")
    return LanguageModel(size), Samples(batch, lambda: (words, words))


class Patches(nn.Module):
    """Maps images to tokens, of which the first belongs to the class."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 197, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions


class Classes(nn.Module):
    """Maps the first token to the logits of 1,000 classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x[:, 0]))


def patches(batch: int) -> tuple[nn.Module, Samples]:
    """Return a ViT-L and its images."""
    image, label = torch.zeros(3, 224, 224, device="cpu"), torch.tensor(0, device="cpu")
    size = BlockSize(width=1024, heads=16, is_fused=True)
    blocks = [Block(size) for _ in range(24)]
    model = nn.Sequential(Patches(size.width), *blocks, Classes(size.width))
    return model, Samples(batch, lambda: (image, label))


def images(batch: int) -> tuple[nn.Module, Samples]:
    image, label = torch.zeros(3, 224, 224, device="cpu"), torch.tensor(0, device="cpu")
    return ResidualNetwork(), Samples(batch, lambda: (image, label))


GPT2 = LanguageModelSize(words=50257, width=768, layers=12, heads=12, tokens=1024)
SMALL = LanguageModelSize(words=8000, width=512, layers=4, heads=8, tokens=256)
LARGE = LanguageModelSize(words=32000, width=2048, layers=24, heads=16, tokens=2048)
HUGE = LanguageModelSize(words=32000, width=4096, layers=32, heads=32, tokens=2048)
PROGRAMS: dict[str, Callable[[], tuple[nn.Module, Samples]]] = {
    "small": lambda: language_model(32, SMALL),
    "gpt2-124m": lambda: language_model(64, GPT2),
    "gpt2-124m-batch-24": lambda: language_model(24, GPT2),
    "llama-1.3b": lambda: language_model(32, LARGE),
    "llama-7b": lambda: language_model(16, HUGE),
    "vit-l": lambda: patches(64),
    "resnet": lambda: images(256),
}


def train(program: str) -> None:
    # On this rank's GPU: the parameters of eight ranks would not fit in the memory of most hosts.
    with torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))):
        model, samples = PROGRAMS[program]()

    model = anyrig.spread(model, loss=nn.CrossEntropyLoss(), precision="bfloat16")
    batch = samples.count // STEPS
    loader = anyrig.distribute(DataLoader(samples, batch_size=batch), model)
    optimizer = torch.optim.AdamW(model.parameters())
    for given, target in loader:
        model(given.cuda(), target=target.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    train(sys.argv[1])
