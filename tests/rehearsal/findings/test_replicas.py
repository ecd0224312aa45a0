"""Several devices of one process: R01, R05, R06 and R07."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from promises import BF16, Layers, check_promise, line_of, on_gpu, training
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import gather, parallel_apply, replicate, scatter

DEVICES = [0, 1, 2, 3]
LAST = torch.channels_last


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(256, 256, 3, padding=1, dtype=BF16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.mean((1, 2, 3))


def test_a_batch_that_does_not_divide() -> None:
    def step(samples: int) -> Callable[[], Tensor]:
        batch = on_gpu(samples, 256, 112, 112)().to(memory_format=LAST)
        model = Images().to(memory_format=LAST)  # type: ignore[call-overload]
        return training(nn.DataParallel(model.cuda(), DEVICES), lambda: batch)

    # Parts of 3, 3, 3 and 1.
    check_promise("R07", step(10), step(12), line_of(Images, "layer(x)"), samples_more=1.2)


class Frozen(nn.Module):
    """A frozen model in replicas, and a layer that is trained."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        base = Layers().cuda().requires_grad_(False)
        self.base = nn.DataParallel(base, DEVICES[:2])
        self.head = nn.Linear(4096, 4096, dtype=BF16)
        self.replicas: Any = replicate(base, DEVICES[:2]) if keeps else []

    def forward(self, x: Tensor) -> Tensor:
        if not self.replicas:
            return self.head(self.base(x))  # rebuilds
        parts = scatter(x, DEVICES[:2])
        outputs = parallel_apply(self.replicas, [(part,) for part in parts])
        return self.head(gather(outputs, 0))


def test_replicas_of_frozen_parameters() -> None:
    def step(keeps: bool) -> Callable[[], Tensor]:
        return training(Frozen(keeps), on_gpu(4096, 4096))

    check_promise("R06", step(False), step(True), line_of(Frozen, "# rebuilds"))


class Tokens(nn.Module):
    """Returns scores, or their loss if it gets the targets."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Layers(2048, 3), nn.Linear(2048, 32000, dtype=BF16)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        scores = self.head(self.body(x))
        if targets is None:
            return scores
        return functional.cross_entropy(scores.float(), targets).reshape(1)


class Replicated(nn.Module):
    def __init__(self, loss_in_replicas: bool) -> None:
        super().__init__()
        self.replicas = nn.DataParallel(Tokens().cuda(), DEVICES)
        self.loss_in_replicas = loss_in_replicas
        self.targets = torch.zeros(4096, dtype=torch.long, device="cuda")

    def forward(self, x: Tensor) -> Tensor:
        if self.loss_in_replicas:
            return self.replicas(x, self.targets).mean()
        scores = self.replicas(x).float()  # float32 takes the most time
        return functional.cross_entropy(scores, self.targets)  # the loss


def test_a_lead_that_computes_the_loss() -> None:
    def step(in_replicas: bool) -> Callable[[], Tensor]:
        return training(Replicated(in_replicas), on_gpu(4096, 2048))

    finding = check_promise("R05", step(False), step(True), line_of(Replicated, "# the loss"))
    shown = re.search(r"computes for ([\d.]+) ms in each step", finding.text)
    assert shown is not None, finding.text
    assert finding.saved_seconds is not None
    # Three quarters of that time are saved, as each device then computes its part; and copies are.
    share = 1e-3 * float(shown[1]) * (1 - 1 / len(DEVICES))
    assert finding.saved_seconds / 2 < share < finding.saved_seconds


class Side(nn.Module):
    """A model on each of some devices, which exchange nothing."""

    def __init__(self, devices: list[int]) -> None:
        super().__init__()
        self.models = nn.ModuleList(Layers(1024, 8).cuda(device) for device in devices)
        self.batches = [torch.ones(2048, 1024, dtype=BF16, device=f"cuda:{d}") for d in devices]

    def step(self) -> Callable[[], None]:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

        def run() -> None:
            for model, batch in zip(self.models, self.batches, strict=True):
                model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return run


def test_devices_that_one_process_launches_for() -> None:
    finding = check_promise(
        "R01", Side(DEVICES).step(), Side([0]).step(), line_of(Layers, "layer(x)")
    )
    assert "They exchange nothing" in finding.text
