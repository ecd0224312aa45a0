"""Models for `test_batch_size.py`, on a rehearsed GPU in a process of its own."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from anyrig.memory import fit_batch_size
from anyrig.virtual import install

GPUS = "V100-16GB+A100-40GB+A100-80GB"


def compare(model: str) -> None:
    """Print the batch, the largest one found, the probes and the true limit for each GPU."""
    install(GPUS, shape_only=True, without_kernels=True)
    gc.collect()
    gc.freeze()  # leaves few objects to search for modules, before each probe
    build, shape = MODELS[model]
    for index in range(3):
        torch.cuda.set_device(index)
        net = build().cuda()
        optimizer = torch.optim.AdamW(net.parameters())

        def step(samples: int, net: nn.Module = net, optimizer: Any = optimizer) -> None:
            x = torch.randn(samples, *shape, device="cuda")
            y = torch.zeros(samples, dtype=torch.long, device="cuda")
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        fit = fit_batch_size(step)
        step(1)  # with the optimizer's state
        print(
            fit.samples, fit.largest_samples, len(fit.probes), largest_of(step, fit.largest_samples)
        )


def largest_of(step: Callable[[int], None], fits: int) -> int:
    """Return the largest batch that fits, by bisection: every batch below a failing one fits."""
    fails = fits + fits // 16
    assert not can_compute(step, fails)
    while fails - fits > max(1, fits // 2000):
        middle = (fits + fails) // 2
        if can_compute(step, middle):
            fits = middle
        else:
            fails = middle
    return fits


def can_compute(step: Callable[[int], None], samples: int) -> bool:
    torch.cuda.empty_cache()
    try:
        step(samples)
    except torch.OutOfMemoryError:
        return False
    return True


def perceptron() -> nn.Module:
    hidden = (nn.Linear(4096, 4096), nn.ReLU())
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), *hidden, nn.Linear(4096, 10))


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return nn.Sequential(layers, nn.Flatten(), nn.Linear(768 * 128, 10))


MODELS = {
    "perceptron": (perceptron, (1024,)),
    "convolutional": (convolutional, (3, 224, 224)),
    "transformer": (transformer, (128, 768)),
}
