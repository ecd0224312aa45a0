"""A rank that trains on request: ``ranked_training.py MODEL ENGINE ADDRESS PORT``.

::

    benchmark                       each rank
       │ <── {"rank", "time"} ───────── after its first step
       │ ─── number of steps ─────────> a barrier, then the steps
       │ <── {"wall", "processor"} ──── seconds of the steps

The groups of several launchers stay running and take turns, so each turn starts warm.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

BATCH = {"language": 8, "images": 16, "perceptron": 8}  # samples per rank

NOT_INSTALLED = "not installed"


def build(model: str) -> nn.Module:
    from workloads.language_model import LanguageModel, LanguageModelSize

    if model == "language":
        return LanguageModel(LanguageModelSize(words=2000, width=256, layers=4, heads=4, tokens=64))
    if model == "perceptron":
        return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    blocks = [block(3, 32, 1), block(32, 64, 2), block(64, 128, 1), block(128, 256, 2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(1024, 10))


def batch_of(model: str, samples: int) -> tuple[Tensor, Tensor]:
    if model == "language":
        words = torch.randint(2000, (samples, 64))
        return words, words.roll(-1, 1)
    if model == "perceptron":
        return torch.randn(samples, 16), torch.randint(4, (samples,))
    return torch.randn(samples, 3, 32, 32), torch.randint(10, (samples,))


def training_step(model: str, engine: str) -> Callable[[], None]:
    """Return a training step as a script would write it with `engine`."""
    torch.manual_seed(0)
    module, criterion = build(model), nn.CrossEntropyLoss()
    optimizer: Any = torch.optim.SGD(module.parameters(), 0.01)
    if engine == "DDP":
        dist.init_process_group("gloo")
        net: Any = nn.parallel.DistributedDataParallel(module)
    elif engine.startswith("anyrig"):
        import anyrig

        loss = criterion if engine == "anyrig, loss=" else None
        net = anyrig.spread(module, anyrig.Rig.detect(), loss=loss)
    elif engine == "accelerate":
        from accelerate import Accelerator

        net, optimizer = Accelerator(cpu=True).prepare(module, optimizer)
    elif engine == "Fabric":
        from lightning_fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
        fabric.launch()
        net, optimizer = fabric.setup(module, optimizer)
    else:  # one process with the batches of two ranks
        net = module
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    x, y = batch_of(model, BATCH[model] * (2 if net is module else 1))

    def step() -> None:
        optimizer.zero_grad()
        loss = net(x, target=y) if engine == "anyrig, loss=" else criterion(net(x), y)
        loss.backward()
        optimizer.step()

    return step


def main(model: str, engine: str, address: str, port: str) -> None:
    step = training_step(model, engine)
    step()
    first = {"rank": int(os.environ.get("RANK", "0")), "time": time.time()}
    with socket.create_connection((address, int(port))) as link:
        link.sendall(json.dumps(first).encode() + b"\n")
        for steps in link.makefile():
            if dist.is_initialized():
                dist.barrier()
            wall, processor = time.perf_counter(), time.process_time()
            for _ in range(int(steps)):
                step()
            seconds = {
                "wall": time.perf_counter() - wall,
                "processor": time.process_time() - processor,
            }
            link.sendall(json.dumps(seconds).encode() + b"\n")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    # PyTorch 2.13 sometimes hangs at exit after using gloo; see docs/processes.md.
    os._exit(0)
