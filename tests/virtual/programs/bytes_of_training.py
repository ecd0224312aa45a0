"""Trains three networks on a virtual GPU and prints the statistics of torch.cuda as JSON."""

from __future__ import annotations

import gc
import json
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional

from anyrig.virtual import install


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, num_layers=2, batch_first=True, dropout=0.2)
        self.gru = nn.GRU(32, 24, batch_first=True)
        self.out = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.lstm(x)[0])[0][:, -1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.embedding(x)).mean(1))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, stride=2, groups=4),
        nn.GroupNorm(8, 64),
        nn.SiLU(),
        nn.Dropout2d(0.1),
        nn.ConvTranspose2d(64, 16, 2, stride=2),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(16 * 9, 10),
    )


def train(model: nn.Module, x: Tensor) -> dict[str, int]:
    torch.cuda.reset_peak_memory_stats()
    model.cuda()
    y = torch.randint(10, (len(x),), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=isinstance(model, Transformer)):
            loss = functional.cross_entropy(model(x.cuda()), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {key: value for key, value in torch.cuda.memory_stats().items() if "bytes" in key}


def main() -> None:
    install("1xA100-80GB", shape_only=sys.argv[1] == "shape-only")
    programs = {
        "convolutional": (convolutional(), torch.randn(16, 3, 32, 32)),
        "recurrent": (Recurrent(), torch.randn(8, 12, 16)),
        "transformer": (Transformer(), torch.randint(100, (8, 20))),
    }
    counted = {}
    for name, (model, x) in programs.items():
        counted[name] = train(model, x)
        gc.collect()
    print(json.dumps(counted))


if __name__ == "__main__":
    main()
