"""A script to rehearse: ``python rehearsed_training.py MODEL STEPS``.

`gpt2` is nanoGPT's training of GPT-2 with 124 million parameters; `sharded` is a rank of those that
train a transformer of 69 billion parameters with FSDP2; `small` is a network of three layers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))


def train_gpt2(steps: int) -> None:
    from workloads.language_model import LanguageModel, LanguageModelSize

    size = LanguageModelSize(words=50304, width=768, layers=12, heads=12, tokens=1024)
    model = LanguageModel(size)
    model.head.weight = model.embedding.weight  # as in GPT-2
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    words = torch.randint(size.words, (12, size.tokens), device="cuda")
    for _ in range(steps):
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(model(words), words)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def train_sharded(steps: int) -> None:
    import torch.distributed as dist

    from workloads.sharded_transformer import on_meta, shard_layers, training_step

    dist.init_process_group()
    model = on_meta()
    shard_layers(model)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(steps):
        training_step(model, model, optimizer)
    dist.destroy_process_group()


def train_small(steps: int) -> None:
    layers = [nn.Linear(256, 256) for _ in range(3)]
    model = nn.Sequential(*(module for layer in layers for module in (layer, nn.ReLU()))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.ones(64, 256, device="cuda")
    for _ in range(steps):
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    name, steps = sys.argv[1], int(sys.argv[2])
    {"gpt2": train_gpt2, "sharded": train_sharded, "small": train_small}[name](steps)
