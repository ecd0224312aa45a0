"""A diffusion model: a U-Net learns to predict the noise that was added to images of 64 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

WIDTHS = (128, 256, 256, 512)


class Block(nn.Module):
    """Two convolutions whose features are shifted by the time, and attention where asked for."""

    def __init__(self, inputs: int, outputs: int, attends: bool) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = (
            nn.GroupNorm(32, inputs),
            nn.Conv2d(inputs, outputs, 3, padding=1),
        )
        self.norm_2, self.conv_2 = (
            nn.GroupNorm(32, outputs),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.time = nn.Linear(512, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)
        self.attention = nn.MultiheadAttention(outputs, 8, batch_first=True) if attends else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv_1(functional.silu(self.norm_1(x))) + self.time(time)[:, :, None, None]
        x = self.skip(x) + self.conv_2(functional.silu(self.norm_2(y)))
        if self.attention is not None:
            rows = x.flatten(2).transpose(1, 2)
            x = x + self.attention(rows, rows, rows, need_weights=False)[0].mT.view_as(x)
        return x


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, WIDTHS[0], 3, padding=1)
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU())
        down = zip((WIDTHS[0], *WIDTHS), WIDTHS, strict=False)
        self.down = nn.ModuleList(Block(a, b, attends=b == 512) for a, b in down)
        self.middle = Block(WIDTHS[-1], WIDTHS[-1], attends=True)
        up = zip(WIDTHS[::-1], (*WIDTHS[-2::-1], WIDTHS[0]), strict=True)
        self.up = nn.ModuleList(Block(2 * a, b, attends=a == 512) for a, b in up)
        self.last = nn.Conv2d(WIDTHS[0], 3, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """Return the noise in images `x` of shape (samples, 3, 64, 64) at steps (samples,)."""
        rates = torch.exp(-torch.arange(64, device=x.device) * (9.2 / 64))
        angles = step[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x, skips = self.first(x), []
        for block in self.down:
            x = block(x, time)
            skips.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, skips.pop()], dim=1), time)
        return self.last(x)


model = UNet().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
kept = torch.linspace(0.9999, 0.98, 1000).cumprod(0).cuda()

for (images,) in DataLoader(TensorDataset(torch.zeros(128, 3, 64, 64)), batch_size=32):
    images = images.cuda()
    noise = torch.randn_like(images)
    step = torch.randint(1000, (len(images),), device="cuda")
    share = kept[step][:, None, None, None]
    noisy = share.sqrt() * images + (1 - share).sqrt() * noise
    loss = functional.mse_loss(model(noisy, step), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
