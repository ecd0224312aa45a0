"""MAR-L's training: LTH14/mar, `main_mar.py` with 8 blocks of diffusion loss, 1280 wide.

A step takes 64 images of 256 pixels a GPU. Its mask hides a random part of the 256 tokens, of which
this takes the mean. The images are encoded in each step, without autocast.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .image_encoder import LATENTS, make_encoder
from .ranks import spread
from .vision_transformer import Block, BlockSize

BATCH, TOKENS, BUFFER, WIDTH, BLOCKS = 64, 256, 64, 1024, 16
# The mean of a normal distribution around 1 with deviation 0.25, between 0.7 and 1.
SHOWN = TOKENS - round(0.867 * TOKENS)
INNER, INNER_BLOCKS, REPEATS = 1280, 8, 4


def call(module: nn.Module, *inputs: Tensor, recomputes: bool) -> Tensor:
    return checkpoint(module, *inputs, use_reentrant=True) if recomputes else module(*inputs)


class ModulatedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(INNER, 1e-6)
        self.mlp = nn.Sequential(nn.Linear(INNER, INNER), nn.SiLU(), nn.Linear(INNER, INNER))
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(INNER, 3 * INNER))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale, gate = self.modulate(condition).chunk(3, -1)
        return x + gate * self.mlp(self.norm(x) * (1 + scale) + shift)


class DiffusionLoss(nn.Module):
    """A network that predicts noise and variance of each token, given its condition."""

    def __init__(self, *, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.time = nn.Sequential(nn.Linear(256, INNER), nn.SiLU(), nn.Linear(INNER, INNER))
        self.condition, self.inputs = nn.Linear(WIDTH, INNER), nn.Linear(LATENTS, INNER)
        self.blocks = nn.ModuleList(ModulatedBlock() for _ in range(INNER_BLOCKS))
        self.norm = nn.LayerNorm(INNER, 1e-6, elementwise_affine=False)
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(INNER, 2 * INNER))
        self.out = nn.Linear(INNER, 2 * LATENTS)

    def forward(self, tokens: Tensor, z: Tensor, mask: Tensor) -> Tensor:
        noise = torch.randn_like(tokens)
        steps = torch.rand(len(tokens), 1, device=tokens.device)
        noisy = steps * tokens + (1 - steps) * noise
        angles = steps * torch.ones(128, device=tokens.device)
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x, condition = self.inputs(noisy), time + self.condition(z)
        for block in self.blocks:
            x = call(block, x, condition, recomputes=self.recomputes)
        shift, scale = self.modulate(condition).chunk(2, -1)
        predicted, variance = self.out(self.norm(x) * (1 + scale) + shift).chunk(2, -1)
        # The bound of the likelihood and the squared error, each a few operators on 16 channels.
        bound = (variance.float().exp() * (noise - predicted.detach()) ** 2).mean(-1)
        loss = ((noise - predicted) ** 2).mean(-1) + bound
        return (loss * mask).sum() / mask.sum()


class Mar(nn.Module):
    def __init__(self, *, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        size = BlockSize(WIDTH, 16, 0.1, is_fused=True)
        self.classes, self.inputs = nn.Embedding(1000, WIDTH), nn.Linear(LATENTS, WIDTH)
        self.first_norm, self.encoded_norm = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.encoder = nn.ModuleList(Block(size) for _ in range(BLOCKS))
        self.decoder = nn.ModuleList(Block(size) for _ in range(BLOCKS))
        self.between, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, 1e-6)
        self.hidden = nn.Parameter(torch.zeros(1, 1, WIDTH))
        lengths = (BUFFER + TOKENS, BUFFER + TOKENS, TOKENS)
        self.positions = nn.ParameterList(torch.zeros(1, each, WIDTH) for each in lengths)
        self.loss = DiffusionLoss(recomputes=recomputes)

    def forward(self, images: Tensor, labels: Tensor, shown: Tensor) -> Tensor:
        x = images.flatten(2).transpose(1, 2)
        tokens = x.clone().detach()
        x = self.inputs(x)
        x = torch.cat([torch.zeros(BATCH, BUFFER, WIDTH, device=x.device), x], 1)
        x[:, :BUFFER] = self.classes(labels).unsqueeze(1)
        x = self.first_norm(x + self.positions[0])
        rows = torch.arange(BATCH, device=x.device).unsqueeze(1)
        x = x[rows, shown]
        for block in self.encoder:
            x = call(block, x, recomputes=self.recomputes)
        x = self.between(self.encoded_norm(x))
        y = self.hidden.repeat(BATCH, BUFFER + TOKENS, 1).to(x.dtype).clone()
        y[rows, shown] = x
        y = y + self.positions[1]
        for block in self.decoder:
            y = call(block, y, recomputes=self.recomputes)
        z = self.norm(y)[:, BUFFER:] + self.positions[2]
        mask = torch.ones(REPEATS * BATCH * TOKENS, device=x.device)
        repeated = (part.reshape(BATCH * TOKENS, -1).repeat(REPEATS, 1) for part in (tokens, z))
        return self.loss(*repeated, mask)


def train(steps: int, *, recomputes: bool) -> None:
    dist.init_process_group("nccl")
    torch.backends.cudnn.benchmark = True
    encoder = make_encoder().cuda().eval().requires_grad_(False)
    module = Mar(recomputes=recomputes).cuda()
    averages = [copy.deepcopy(parameter.detach()) for parameter in module.parameters()]
    model, scaler = spread(module), torch.amp.GradScaler()
    optimizer = torch.optim.AdamW(module.parameters(), betas=(0.9, 0.95))
    pinned = torch.zeros(BATCH, 3, 256, 256).pin_memory()
    labels = torch.zeros(BATCH, dtype=torch.long, device="cuda")
    shown = torch.arange(BUFFER + SHOWN, device="cuda").expand(BATCH, -1)
    for _ in range(steps):
        images = pinned.cuda(non_blocking=True)
        with torch.no_grad():
            mean, spread_of = encoder(images).chunk(2, 1)
            latents = mean + torch.exp(0.5 * spread_of.clamp(-30, 20)) * torch.randn_like(mean)
            latents.mul_(0.2325)
        with torch.autocast("cuda", torch.float16):
            loss = model(latents, labels, shown)
        loss.item()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 3.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        for average, parameter in zip(averages, module.parameters(), strict=True):
            average.mul_(0.9999).add_(parameter.detach(), alpha=0.0001)
