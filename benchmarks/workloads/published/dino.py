"""DINO's training of ViT-S/16: facebookresearch/dino, `main_dino.py` with `--arch vit_small`.

A step takes 2 crops of 224 and 8 of 96 pixels of 64 images a GPU. The teacher sees the larger ones.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from .ranks import follow, spread
from .vision_transformer import BlockSize, VisionTransformer, keep_until_backward

BATCH, LOCAL_CROPS, OUTPUTS = 64, 8, 65536


class Network(nn.Module):
    """A ViT that takes crops of one size at a time, and DINO's head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = VisionTransformer(BlockSize(384, 6), dropped_paths=0.1)
        layers = [nn.Linear(384, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU()]
        self.head = nn.Sequential(*layers, nn.Linear(2048, 256))
        self.last = nn.utils.weight_norm(nn.Linear(256, OUTPUTS, bias=False))
        self.last.weight_g.requires_grad = False

    def forward(self, crops: list[Tensor]) -> Tensor:
        by_size: dict[int, list[Tensor]] = {}
        for crop in crops:
            by_size.setdefault(crop.shape[-1], []).append(crop)
        x = torch.cat([self.body(torch.cat(alike)) for alike in by_size.values()])
        return self.last(functional.normalize(self.head(x), dim=-1))


def _log_softmax(x: Tensor) -> Tensor:
    return keep_until_backward(functional.log_softmax(x, -1), x)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, OUTPUTS))

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        views = (student / 0.1).chunk(2 + LOCAL_CROPS)
        targets = functional.softmax((teacher - self.center) / 0.04, -1).detach().chunk(2)
        losses = [
            torch.sum(-target * _log_softmax(view), -1).mean()
            for place, target in enumerate(targets)
            for other, view in enumerate(views)
            if place != other
        ]
        self._move_center(teacher)
        return sum(losses) / len(losses)

    @torch.no_grad()
    def _move_center(self, teacher: Tensor) -> None:
        mean = teacher.sum(0, keepdim=True)
        dist.all_reduce(mean)
        mean = mean / (len(teacher) * dist.get_world_size())
        self.center = self.center * 0.9 + mean * 0.1


def clip(student: nn.Module, most: float) -> None:
    """Clip the gradient of each parameter, whose norm the host reads."""
    for parameter in student.parameters():
        if parameter.grad is not None:
            norm = parameter.grad.norm(2)
            norm.item()
            if (factor := most / (norm + 1e-6)) < 1:
                parameter.grad.mul_(factor)


def train(steps: int) -> None:
    dist.init_process_group("nccl")
    torch.backends.cudnn.benchmark = True
    student = Network().cuda()
    teacher = Network().cuda().requires_grad_(False)
    model, criterion, scaler = spread(student), Loss().cuda(), torch.amp.GradScaler()
    # PyTorch 1.7 updated one parameter after the other.
    optimizer = torch.optim.AdamW(student.parameters(), foreach=False)
    crops = [torch.zeros(BATCH, 3, 224, 224) for _ in range(2)]
    crops += [torch.zeros(BATCH, 3, 96, 96) for _ in range(LOCAL_CROPS)]
    crops = [crop.pin_memory() for crop in crops]
    for _ in range(steps):
        images = [crop.cuda(non_blocking=True) for crop in crops]
        with torch.autocast("cuda", torch.float16):
            target = teacher(images[:2])
            output = model(images)  # lives until the next step's
            loss = criterion(output, target)
        loss.item()
        for parameter in student.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(student, 3.0)
        for parameter in student.last.parameters():  # they are frozen for an epoch
            parameter.grad = None
        scaler.step(optimizer)
        scaler.update()
        follow(teacher.parameters(), student.parameters(), 0.996)
        torch.cuda.synchronize()
