"""DeiT-B's training: facebookresearch/deit (1d38fa4c, 2020-12-23), `main.py`, 128 images a GPU.

After each epoch of 1251 steps, every rank evaluates all 50,000 images, 192 at a time.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from .ranks import follow, spread
from .vision_transformer import BlockSize, VisionTransformer

BATCH, CLASSES, EVALUATED_BATCH = 128, 1000, 192
STEPS_OF_EPOCH, EVALUATIONS_OF_EPOCH = 1251, 261


def _model() -> nn.Sequential:
    body = VisionTransformer(BlockSize(768, 12), dropped_paths=0.1)
    return nn.Sequential(body, nn.Linear(768, CLASSES)).cuda()


def train(steps: int) -> None:
    dist.init_process_group("nccl")
    torch.backends.cudnn.benchmark = True
    module = _model()
    average = copy.deepcopy(module).requires_grad_(False)
    model, scaler = spread(module), torch.amp.GradScaler()
    # timm's AdamW updates one parameter after the other.
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    pinned = torch.zeros(BATCH, 3, 224, 224).pin_memory()
    for _ in range(steps):
        x = pinned.cuda(non_blocking=True)
        flipped = x.flip(0).mul_(0.2)
        x.mul_(0.8).add_(flipped)
        target = torch.full((BATCH, CLASSES), 1e-4, device="cuda")
        with torch.autocast("cuda", torch.float16):
            scores = model(x)
            loss = torch.sum(-target * functional.log_softmax(scores, -1), -1).mean()
        loss.item()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        follow(average.parameters(), module.parameters(), 0.99996)


def evaluate(steps: int) -> None:
    """Evaluate batches, each of which ends with `step` of an optimizer without gradients."""
    module = _model().eval()
    mark = torch.optim.SGD(module.parameters(), 0.0)
    pinned = torch.zeros(EVALUATED_BATCH, 3, 224, 224).pin_memory()
    target = torch.zeros(EVALUATED_BATCH, dtype=torch.long, device="cuda")
    for _ in range(steps):
        x = pinned.cuda(non_blocking=True)
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            functional.cross_entropy(module(x), target).item()
        mark.step()
