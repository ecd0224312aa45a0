"""Small models with blocks, for the tests of recomputation."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from anyrig.memory import checkpoint_blocks, recompute_blocks
from anyrig.memory.program_state import ProgramState
from anyrig.memory.recompute.blocks import find_blocks
from anyrig.memory.recompute.choose import choose_blocks
from anyrig.memory.recompute.measure import StepRunner
from anyrig.virtual import install


class Layer(nn.Module):
    """A transformer layer with dropout."""

    def __init__(self, width: int, inner: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores + mask
        x = x + self.dropout(scores.softmax(-1) @ v)
        return x + self.dropout(self.feed_forward(x))


class Transformer(nn.Module):
    """Layers whose inner widths differ, so that their bytes and times differ."""

    def __init__(self, width: int, inner: tuple[int, ...], dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, width)
        self.layers = nn.ModuleList(Layer(width, each, dropout) for each in inner)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, mask=mask)
        return self.head(x.mean(1))


class Residual(nn.Module):
    """The basic block of a residual network."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        same = stride == 1 and channels == width
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, width, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.path(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Two stages of two basic blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width))
        self.stage1 = nn.Sequential(Residual(width, width, 1), Residual(width, width, 1))
        wide = 2 * width
        self.stage2 = nn.Sequential(Residual(width, wide, 2), Residual(wide, wide, 1))
        self.head = nn.Linear(wide, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage2(self.stage1(self.stem(x))).mean((2, 3)))


def small_transformer() -> Transformer:
    return Transformer(32, (32, 128, 64))


def small_resnet() -> ResNet:
    return ResNet(4)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small transformer": (small_transformer, (4, 16, 8)),
    "small resnet": (small_resnet, (4, 3, 8, 8)),
    "transformer": (lambda: Transformer(1024, (8192, 1024, 4096, 2048)), (16, 512, 8)),
    "resnet": (lambda: ResNet(64), (64, 3, 56, 56)),
}


class Training:
    """A model on a GPU, with its step."""

    def __init__(self, name: str) -> None:
        build, shape = MODELS[name]
        with torch.device("cuda"):
            self.model = build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.x = torch.randn(shape, device="cuda")
        self.y = torch.randint(10, shape[:1], device="cuda")

    def step(self) -> None:
        functional.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def compare() -> None:
    """Print as JSON what every choice of blocks takes, and what is chosen for 20 budgets."""
    import torch._dynamo  # as the first checkpoint does

    install("A100-80GB", shape_only=True)
    gc.freeze()  # so that collections take little time
    for name in ("transformer", "resnet"):
        training = Training(name)
        blocks = find_blocks(training.model)
        names = [*blocks]
        runner = StepRunner(training.step, blocks, torch.device("cuda:0"), ProgramState())
        costs = runner.measure_costs()
        every = {}
        for count in range(len(names) + 1):
            for chosen in itertools.combinations(range(len(names)), count):
                recompute_blocks(training.model, [names[block] for block in chosen])
                every[chosen] = (*measured(training.step), costs.peak_bytes(chosen))
        lowest, highest = (f(peak for peak, _, _ in every.values()) for f in (min, max))
        budgets = [lowest + (highest - lowest) * number // 19 for number in range(20)]
        choices = [sorted(choose_blocks(costs, budget_bytes) or ()) for budget_bytes in budgets]
        plans = []
        for budget_bytes in (budgets[0], budgets[9]):
            plan = checkpoint_blocks(training.model, budget_bytes, training.step)
            chosen = [names.index(block) for block in plan.blocks]
            plans.append((budget_bytes, chosen, plan.peak_bytes, measured(training.step)[0]))
        found = {
            "every": [*every.items()],
            "choices": list(zip(budgets, choices, strict=True)),
            "plans": plans,
        }
        print(json.dumps(found))


def measured(step: Callable[[], object]) -> tuple[int, float]:
    """Return the peak of a step in bytes, and its seconds on the GPU."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(), begin.elapsed_time(end) / 1000


def gradients_of(model: nn.Module) -> dict[str, Any]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
