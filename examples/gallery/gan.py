"""A DCGAN for images of 64 pixels: two networks and two optimizers, many small kernels."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

NOISE, WIDTH = 100, 64


def make_generator() -> nn.Sequential:
    """Return a network: noise of shape (samples, 100, 1, 1) to images (samples, 3, 64, 64)."""
    layers: list[nn.Module] = []
    sizes = (NOISE, 8 * WIDTH, 4 * WIDTH, 2 * WIDTH, WIDTH)
    for number, (a, b) in enumerate(pairwise(sizes)):
        stride, padding = (1, 0) if number == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False)]
        layers += [nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False), nn.Tanh())


def make_critic() -> nn.Sequential:
    """Return a network: images of shape (samples, 3, 64, 64) to one score each."""
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for a, b in ((WIDTH, 2 * WIDTH), (2 * WIDTH, 4 * WIDTH), (4 * WIDTH, 8 * WIDTH)):
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(8 * WIDTH, 1, 4, bias=False), nn.Flatten(0))


generator, critic = make_generator().cuda(), make_critic().cuda()
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))

for (real,) in DataLoader(TensorDataset(torch.zeros(512, 3, 64, 64)), batch_size=128):
    real = real.cuda()
    fake = generator(torch.randn(len(real), NOISE, 1, 1, device="cuda"))
    on_real, on_fake = critic(real), critic(fake.detach())
    loss = functional.softplus(-on_real).mean() + functional.softplus(on_fake).mean()
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()

    loss_of_generator = functional.softplus(-critic(fake)).mean()
    of_generator.zero_grad()
    loss_of_generator.backward()
    of_generator.step()
    print(f"critic {loss.item():.3f} generator {loss_of_generator.item():.3f}")
