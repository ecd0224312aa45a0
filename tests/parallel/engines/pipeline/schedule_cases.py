"""What ranks do in `test_pipeline_over_ranks.py`: schedules, and what stages hold and send."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from pair_over_ranks import Pair, batch, close, on_device, perceptron
from pipeline.models_with_losses import Indexing
from torch import Tensor, nn

import anyrig
from anyrig.parallel.engines.pipeline.over_ranks import links
from anyrig.parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere
from anyrig.parallel.engines.pipeline.over_ranks.memory_link import MemoryLink
from anyrig.parallel.engines.pipeline.schedules.named import SCHEDULE_NAMES
from anyrig.parallel.plans import Pipeline

SCHEDULES = [name for name in SCHEDULE_NAMES if name != "forward"]


def case_schedules() -> None:
    try_schedules((1, 6))
    try_schedules((8,), ["zero-bubble-few"])  # with fewer on two ranks, it is zero-bubble-h2


def case_schedules_of_more_micro_batches() -> None:
    try_schedules((2, 3, 8, 16))


def try_schedules(numbers: Sequence[int], schedules: Sequence[str] = SCHEDULES) -> None:
    for schedule in schedules:
        for micro_batches in numbers:
            pair = Pair(
                perceptron(16),
                nn.CrossEntropyLoss(),
                schedule=schedule,
                micro_batches=micro_batches,
            )
            for samples in (9, 9, 3):
                pair.step(*batch(samples), factor=0.5)  # accumulates


def case_checkpointing() -> None:
    for schedule in ("gpipe", "1f1b"):
        for checkpoint in ("except_last", "always"):
            pair = Pair(
                perceptron(),
                nn.CrossEntropyLoss(),
                schedule=schedule,
                micro_batches=4,
                checkpoint=checkpoint,
            )
            pair.step(*batch(10))


class Skipping(nn.Module):
    """Has values that later stages read, tied weights, a buffer, and a mask for every layer."""

    def __init__(self, layers: int = 6, width: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 9, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        first = x = self.embedding(tokens)
        for layer in self.layers:
            x = torch.tanh(layer(x)) * mask[..., None] + first
        return self.head(self.norm(x) * self.scale)


def tokens(samples: int, length: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    given = torch.randint(9, (samples, length), generator=generator)
    mask = torch.rand(samples, length, generator=generator, dtype=torch.float64)
    return on_device(given, mask, torch.randint(9, (samples, length), generator=generator))


def mean_of_tokens(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
    losses = nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
    return losses, target.numel()


def case_values_that_are_too_large_for_memory() -> None:
    """Gloo carries all values, or only micro-batches of two samples and not those of one."""
    send = MemoryLink.send
    sizes: list[int] = []

    def noted(link: MemoryLink, tensors: Sequence[Tensor], tag: int) -> None:
        sizes.append(sum(each.nbytes for each in tensors))
        send(link, tensors, tag)

    for most_bytes in (0, 60):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(links, "MOST_BYTES", most_bytes)
            patch.setattr(MemoryLink, "send", noted)
            pair = Pair(perceptron(), nn.CrossEntropyLoss(), micro_batches=6, schedule="1f1b")
            for samples in (9, 9, 3):
                pair.step(*batch(samples))
            with torch.no_grad():
                x, _ = batch(9)
                close(pair.model(x), pair.one(x))
        assert bool(sizes) is (most_bytes > 0 and pair.device.type == "cpu")
        assert max(sizes, default=0) <= most_bytes


def case_skip_connections_and_tied_weights() -> None:
    for schedule in SCHEDULES:
        pair = Pair(Skipping(8), mean_of_tokens, schedule=schedule, micro_batches=4)
        optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (pair.model, pair.one)]
        for samples, length in ((7, 4), (7, 4), (5, 3), (7, 4)):
            given, mask, target = tokens(samples, length)
            loss = pair.model(given, mask, target=target)
            total, count = mean_of_tokens(pair.one(given, mask), target)
            close(loss, total / count)
            loss.backward()
            (total / count).backward()
            pair.compare_gradients()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        pair.compare_states()
        with torch.no_grad():
            given, mask, _ = tokens(6, 5)
            close(pair.model(given, mask), pair.one(given, mask))


def case_a_device_that_a_later_stage_reads() -> None:
    x, places = on_device(torch.randn(4, 6), torch.randint(6, (4,)))
    pair = Pair(Indexing(), example=((x, places), {}), split_points=["second"])
    close(pair.model(x, places), pair.one(x, places))


def case_automatic_schedule() -> None:
    on_cpus = anyrig.Rig.detect().lead.kind == "cpu"
    pair = Pair(perceptron(), nn.CrossEntropyLoss())
    name = "zero-bubble-few" if on_cpus else "1f1b"
    assert f"schedule {name}: " in str(anyrig.explain(pair.model))
    pair.step(*batch(19))
    assert "schedule gpipe: " in str(anyrig.explain(Pair(perceptron()).model))


def case_one_micro_batch() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), micro_batches=1)
    assert "micro-batches: 1, as given" in str(anyrig.explain(pair.model))
    pair.step(*batch(7))


def case_memory_of_other_stages() -> None:
    net = perceptron()
    parameters = [weakref.ref(parameter) for parameter in net.parameters()]
    model: Any = anyrig.spread(net, plan=Pipeline(), loss=nn.CrossEntropyLoss())
    x, y = batch(8)
    model(x, target=y).backward()
    gc.collect()
    alive = sum(each() is not None for each in parameters)
    own = sum(not isinstance(each, Elsewhere) for each in model.parameters())
    assert alive == own < len(parameters)
