"""What every rank does in the tests of `test_pipeline_over_ranks.py`."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import anyrig
from anyrig.parallel.pipeline.over_ranks.elsewhere import Elsewhere

TOLERANCE = 1e-9
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v")


class Pair:
    """A module in a pipeline over the ranks, and the same alone on each rank."""

    def __init__(self, module: nn.Module, loss: Any = None, **options: Any) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = anyrig.Rig.detect().lead.torch_device
        self.module, self.loss = module.double(), loss
        self.one = copy.deepcopy(module).to(self.device)
        if self.rank:  # whose parameters do not count
            with torch.no_grad():
                for parameter in self.module.parameters():
                    parameter.zero_()
        self.model: Any = anyrig.spread(self.module, loss=loss, **{"how": "pipeline", **options})
        self.row = self.rank * options.get("replicas", 1) // self.ranks

    def step(self, x: Tensor, y: Tensor, factor: float = 1.0, rows: Any = None) -> None:
        """Train both on a global batch; compare losses and gradients."""
        mine = slice(None)
        if rows is not None:
            start = sum(rows[: self.row])
            mine = slice(start, start + rows[self.row])
        loss = self.model(x[mine].cpu(), target=y[mine].cpu())
        alone = self.loss(self.one(x), y)
        close(loss, alone)
        for each in (loss, alone):
            (each * factor).backward()
        self.compare_gradients()

    def own(self) -> dict[str, Tensor]:
        """Return the parameters that this rank has."""
        named = self.model.named_parameters()
        return {name: each for name, each in named if not isinstance(each, Elsewhere)}

    def compare_gradients(self) -> None:
        alone = dict(self.one.named_parameters())
        assert list(alone) == [name for name, _ in self.model.named_parameters()]
        for name, parameter in self.own().items():
            close(parameter.grad, alone[name].grad, name)

    def compare_states(self) -> None:
        ours, theirs = self.model.state_dict(), self.one.state_dict()
        assert list(ours) == list(theirs)
        for name, value in ours.items():
            if not isinstance(value, Elsewhere):
                close(value, theirs[name], name)


def close(one: Tensor | None, other: Tensor | None, what: str = "") -> None:
    assert (one is None) == (other is None), f"{what}: one of two gradients is missing"
    if one is None or other is None:
        return
    assert one.shape == other.shape and one.dtype == other.dtype, what
    one, other = one.detach().cpu(), other.detach().cpu()
    scale = max(1.0, float(other.abs().max()) if other.numel() else 0.0)
    error = float((one - other).abs().max()) / scale if one.numel() else 0.0
    assert error < TOLERANCE, f"{what} is off by {error:.1e}"


def perceptron(layers: int = 8, width: int = 6, classes: int = 5) -> nn.Sequential:
    """Layers with an activation in place at every boundary."""
    steps: list[nn.Module] = []
    for _ in range(layers - 1):
        steps += [nn.Linear(width, width), nn.ReLU(inplace=True)]
    return nn.Sequential(*steps, nn.Linear(width, classes))


def batch(samples: int, width: int = 6, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, width, dtype=torch.float64, generator=generator)
    return on_device(x, torch.randint(classes, (samples,), generator=generator))


def on_device(*tensors: Tensor) -> Any:
    device = anyrig.Rig.detect().lead.torch_device
    return tuple(tensor.to(device) for tensor in tensors)


def case_schedules() -> None:
    for schedule in SCHEDULES:
        for micro_batches in (1, 3, 8):
            pair = Pair(
                perceptron(16),
                nn.CrossEntropyLoss(),
                schedule=schedule,
                micro_batches=micro_batches,
            )
            for samples in (9, 9, 3, 9):
                pair.step(*batch(samples))
                pair.step(*batch(samples), factor=0.5)  # accumulates


def weighted(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """A criterion that returns a sum and a count which depends on the targets."""
    losses = nn.functional.cross_entropy(output, target, reduction="none")
    weights = 1.0 + target.double()
    return (losses * weights).sum(), weights.sum()


def case_losses() -> None:
    for schedule in ("gpipe", "1f1b"):
        for loss in (
            nn.CrossEntropyLoss(reduction="sum"),
            nn.CrossEntropyLoss(ignore_index=1),
            nn.CrossEntropyLoss(*on_device(torch.arange(1.0, 6.0))),
            lambda output, target: ((output - target[:, None]) ** 2).mean(),
        ):
            pair = Pair(perceptron(), loss, schedule=schedule, micro_batches=4)
            pair.step(*batch(10))
    pair = Pair(perceptron(), weighted, micro_batches=4)
    x, y = batch(10)
    loss = pair.model(x, target=y)
    total, count = weighted(pair.one(x), y)
    close(loss, total / count)
    loss.backward()
    (total / count).backward()
    pair.compare_gradients()


def case_a_loss_that_is_not_reduced() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss(reduction="none"), micro_batches=4)
    x, y = batch(10)
    (weights,) = on_device(torch.arange(1.0, 11.0))
    losses = pair.model(x, target=y), pair.loss(pair.one(x), y)
    close(*losses)
    for each in losses:
        (each * weights).sum().backward()
    pair.compare_gradients()
    with torch.no_grad():
        close(pair.model(x, target=y), losses[1])


def case_outputs_and_a_loss_outside() -> None:
    for micro_batches in (1, 3, 4):
        pair = Pair(perceptron(), micro_batches=micro_batches)
        x, y = batch(7)
        given = [x.clone().requires_grad_() for _ in range(2)]
        outputs = pair.model(given[0]), pair.one(given[1])
        close(*outputs)
        for output in outputs:
            nn.functional.cross_entropy(output, y).backward()
        pair.compare_gradients()
        close(given[0].grad, given[1].grad)
        with torch.no_grad():
            close(pair.model(x), pair.one(x))
            assert not pair.model(x).requires_grad
        pair.model.eval()
        close(pair.model(x), pair.one(x))


def case_two_forwards_and_one_backward() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), schedule="gpipe", micro_batches=2)
    (x, y), (u, v) = batch(7), batch(6)
    for model in (pair.model, lambda x, target: pair.loss(pair.one(x), target)):
        first, second = model(x, target=y), model(u, target=v)
        (first + 2 * second).backward()
    pair.compare_gradients()


def case_a_second_backward_pass() -> None:
    x, y = batch(7)
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), schedule="1f1b")
    for model in (pair.model, lambda x, target: pair.loss(pair.one(x), target)):
        loss = model(x, target=y)
        loss.backward(retain_graph=True)
        loss.backward()
    pair.compare_gradients()
    with pytest.raises(RuntimeError, match="earlier backward pass"):
        loss = pair.model(x, target=y)
        loss.backward()
        loss.backward()


def case_gradients_of_arguments() -> None:
    for schedule in ("gpipe", "1f1b", "interleaved"):
        pair = Pair(perceptron(8), nn.CrossEntropyLoss(), schedule=schedule, micro_batches=3)
        x, y = batch(7)
        (before,) = on_device(torch.eye(6))
        losses = []
        for model in (pair.model, lambda x, target: pair.loss(pair.one(x), target)):
            leaf = before.detach().clone().requires_grad_()
            loss = model(x @ leaf, target=y)
            loss.backward()
            losses.append((loss, leaf.grad))
        close(losses[0][0], losses[1][0])
        close(losses[0][1], losses[1][1])
        pair.compare_gradients()


def case_no_grad_with_a_target() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss())
    x, y = batch(7)
    with torch.no_grad():
        loss = pair.model(x, target=y)
        close(loss, pair.loss(pair.one(x), y))
    assert not loss.requires_grad
    assert all(parameter.grad is None for parameter in pair.own().values())


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


def case_steps_of_optimizers() -> None:
    for make in (
        lambda parameters: torch.optim.AdamW(parameters, 0.1),
        lambda parameters: torch.optim.AdamW(parameters, 0.1, fused=True),
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    ):
        pair = Pair(perceptron(), nn.CrossEntropyLoss())
        optimizers = [make(each.parameters()) for each in (pair.model, pair.one)]
        for samples in (8, 5, 1):
            pair.step(*batch(samples))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        pair.compare_states()


def case_frozen_parameters() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), micro_batches=2)
    x, y = batch(5)
    pair.step(x, y)
    for module in (pair.model, pair.one):
        module.zero_grad()
        for parameter in list(module.parameters())[:6]:
            parameter.requires_grad_(False)
    pair.step(x, y)
    for module in (pair.model, pair.one):
        module.zero_grad()
        module.requires_grad_(False)
    assert not pair.model(x, target=y).requires_grad


class Skipping(nn.Module):
    """Values that later stages read, tied weights, a buffer, and a mask for every layer."""

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


def case_split() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), how="split")
    assert "split over" in str(anyrig.explain(pair.model))
    pair.step(*batch(7))


def case_accumulation() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), accumulate=True)
    x, y = batch(12)
    for part in (slice(0, 7), slice(7, 12)):
        pair.model(x[part], target=y[part]).backward()
    pair.loss(pair.one(x), y).backward()
    pair.compare_gradients()


def case_batch_norm() -> None:
    module = nn.Sequential(*perceptron(5), nn.BatchNorm1d(5), nn.Linear(5, 5))
    pair = Pair(module, nn.CrossEntropyLoss())
    pair.step(*batch(9))
    pair.compare_states()


WHOLE = [name for name in list(globals()) if name.startswith("case_")]


def case_rows_of_different_size() -> None:
    for schedule in ("gpipe", "1f1b"):
        pair = Pair(
            perceptron(), nn.CrossEntropyLoss(), schedule=schedule, micro_batches=3, replicas=2
        )
        assert len(pair.own()) == 8
        for rows in ([4, 4], [5, 3], [1, 6], [7, 0], [0, 2], [4, 4]):
            pair.step(*batch(sum(rows)), rows=rows)
        for module in (pair.model, pair.one):
            module.zero_grad()
            module.get_submodule("0").requires_grad_(False)
        pair.step(*batch(8), rows=[5, 3])


def case_rows_and_outputs() -> None:
    pair = Pair(perceptron(), micro_batches=3, replicas=2)
    for rows in ([4, 4], [5, 3], [7, 0]):
        x, y = batch(sum(rows))
        start = sum(rows[: pair.row])
        mine = slice(start, start + rows[pair.row])
        output = pair.model(x[mine])
        alone = pair.one(x)
        close(output, alone[mine])
        nn.functional.cross_entropy(output, y[mine]).backward()
        nn.functional.cross_entropy(alone, y).backward()
        pair.compare_gradients()


def case_rows_with_skip_connections() -> None:
    pair = Pair(Skipping(8), mean_of_tokens, micro_batches=4, replicas=2)
    for rows in ([4, 3], [2, 6]):
        start = sum(rows[: pair.row])
        given = tokens(sum(rows))
        ids, mask, target = (each[start : start + rows[pair.row]] for each in given)
        pair.model(ids, mask, target=target).backward()
        total, count = mean_of_tokens(pair.one(*given[:2]), given[2])
        (total / count).backward()
        pair.compare_gradients()


ROWS = [name for name in list(globals()) if name.startswith("case_rows")]


def case_saving_and_loading() -> None:
    folder = Path(tempfile.gettempdir()) / f"pipeline-{dist.get_world_size()}-{os.getppid()}"
    for module, loss in (
        (perceptron, nn.CrossEntropyLoss()),
        (lambda: Skipping(8), mean_of_tokens),
    ):
        pair = Pair(module(), loss)
        optimizers = [torch.optim.AdamW(each.parameters(), 0.1) for each in (pair.model, pair.one)]
        calls = batch(7) if module is perceptron else tokens(7)
        for _ in range(2):
            pair.model(*calls[:-1], target=calls[-1]).backward()
            found = loss(pair.one(*calls[:-1]), calls[-1])
            (found[0] / found[1] if isinstance(found, tuple) else found).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        saved = anyrig.save(folder, model=pair.model, optimizer=optimizers[0])
        alone = Pair(module(), loss).one
        other = torch.optim.AdamW(alone.parameters(), 0.1)
        anyrig.load(saved, model=alone, optimizer=other)
        for (name, ours), theirs in zip(
            alone.named_parameters(), pair.one.parameters(), strict=True
        ):
            close(ours, theirs, name)
            for part, value in optimizers[1].state[theirs].items():
                close(other.state[ours][part], value, f"{name}.{part}")
        again = Pair(module(), loss)
        with torch.no_grad():
            for parameter in again.own().values():
                parameter.zero_()
        third = torch.optim.AdamW(again.model.parameters(), 0.1)
        anyrig.load(saved, model=again.model, optimizer=third)
        again.one = pair.one
        again.compare_states()
        for name, parameter in again.own().items():
            theirs = dict(pair.one.named_parameters())[name]
            for part, value in optimizers[1].state[theirs].items():
                close(third.state[parameter][part], value, f"{name}.{part}")
    anyrig.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
