"""What every rank does in the tests of `test_pipeline_over_ranks.py`."""

from __future__ import annotations

import copy
import gc
import io
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from beside_one_device import planned
from pipeline.models_with_losses import Indexing, Tagged, Tagger
from pipeline.models_with_losses import batch as labelled
from rank_cases import TIME_LIMIT_SECONDS
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.errors import BatchError, SpreadError
from anyrig.parallel.engines.pipeline.over_ranks import links
from anyrig.parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere
from anyrig.parallel.engines.pipeline.over_ranks.memory_link import MemoryLink
from anyrig.parallel.engines.pipeline.over_ranks.rank_calls import spread_overflow
from anyrig.parallel.engines.pipeline.schedules.named import SCHEDULE_NAMES
from anyrig.parallel.engines.pipeline.stage import Stage
from anyrig.parallel.plans import Pipeline
from anyrig.processes.group.membership import current_context
from anyrig.processes.time_limit import TIME_LIMIT_VARIABLE

TOLERANCE = 1e-9
SCHEDULES = [name for name in SCHEDULE_NAMES if name != "forward"]


class Pair:
    """A module in a pipeline over the ranks, and a copy of it on each rank's device."""

    def __init__(self, module: nn.Module, loss: Any = None, **options: Any) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = anyrig.Rig.detect().lead.torch_device
        self.module, self.loss = module.double(), loss
        self.one = copy.deepcopy(module).to(self.device)
        if self.rank:  # only rank 0's parameters count
            with torch.no_grad():
                for parameter in self.module.parameters():
                    parameter.zero_()
        self.model: Any = anyrig.spread(self.module, loss=loss, **planned(options))
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

    def alone(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss on one device."""
        return self.loss(self.one(x), target)

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
    assert (one.shape, one.dtype) == (other.shape, other.dtype), what
    one, other = one.detach().cpu(), other.detach().cpu()
    scale = max(1.0, float(other.abs().max()) if other.numel() else 0.0)
    error = float((one - other).abs().max()) / scale if one.numel() else 0.0
    assert error < TOLERANCE, f"{what} is off by {error:.1e}"


def perceptron(layers: int = 8, width: int = 6, classes: int = 5) -> nn.Sequential:
    """Return layers with an in-place activation at every boundary."""
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


def weighted(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sum, and a count that depends on the targets."""
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
    x, y = batch(10)
    y[:3] = 1  # so no target of the first micro-batch counts
    pair = Pair(perceptron(), nn.CrossEntropyLoss(ignore_index=1), schedule="1f1b", micro_batches=4)
    pair.step(x, y)
    for schedule in ("gpipe", "1f1b", "zero-bubble-few"):
        pair = Pair(perceptron(), nn.CrossEntropyLoss(ignore_index=1), schedule=schedule)
        x, y = batch(10)
        y[:] = 1
        pair.model(x, target=y).backward()
        pair.loss(pair.one(x), y).backward()
        pair.compare_gradients()
    with pair.model.join():
        pair.model.refresh()
    pair = Pair(perceptron(), weighted, micro_batches=4)
    x, y = batch(10)
    loss = pair.model(x, target=y)
    total, count = weighted(pair.one(x), y)
    close(loss, total / count)
    loss.backward()
    (total / count).backward()
    pair.compare_gradients()


def half_narrow(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
    """Return a sum and a count; the sum's dtype depends on the samples."""
    total = ((output - target[:, None]) ** 2).sum()
    return (total.float() if target[0] > 2 else total), len(target)


def case_losses_of_two_dtypes() -> None:
    for schedule in ("gpipe", "1f1b"):
        pair = Pair(perceptron(), half_narrow, schedule=schedule, micro_batches=4)
        x, _ = batch(8)  # dividing by 8 is exact in both dtypes
        (y,) = on_device(torch.tensor([0, 1, 3, 4, 4, 3, 1, 0]))
        loss = pair.model(x, target=y)
        parts = [
            half_narrow(pair.one(part), targets)[0]
            for part, targets in zip(x.split(2), y.split(2), strict=True)
        ]
        assert [part.dtype is torch.float32 for part in parts] == [False, True, True, False]
        alone = torch.stack(parts).sum() / 8
        close(loss, alone)
        loss.backward()
        alone.backward()
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


def case_no_samples_at_all() -> None:
    for loss, schedule in ((None, "gpipe"), (nn.MSELoss(), "gpipe"), (nn.MSELoss(), "1f1b")):
        pair = Pair(perceptron(classes=1), loss, schedule=schedule, micro_batches=2)
        for samples in (4, 0, 3):
            x, y = batch(samples)[0], torch.ones(samples, 1, dtype=torch.float64)
            y = y.to(x.device)
            for module in (pair.model, pair.one):
                module.zero_grad()
            if loss is not None:
                pair.model(x, target=y).backward()
                loss(pair.one(x), y).backward()
            else:
                for module in (pair.model, pair.one):
                    nn.functional.mse_loss(module(x), y).backward()
            pair.compare_gradients()


def case_outputs_of_one_number() -> None:
    """Only another call shows whether one number from each micro-batch belongs to a sample."""
    x, _ = batch(6)
    for last in (nn.Linear(5, 1), nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))):
        pair = Pair(nn.Sequential(*perceptron(7), last), micro_batches=6)
        for _ in range(2):
            outputs = pair.model(x), pair.one(x)
            close(*outputs)
            for output in outputs:
                output.square().sum().backward()
            pair.compare_gradients()


def case_two_forwards_and_one_backward() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), schedule="gpipe", micro_batches=2)
    (x, y), (u, v) = batch(7), batch(6)
    for model in (pair.model, pair.alone):
        first, second = model(x, target=y), model(u, target=v)
        (first + 2 * second).backward()
    pair.compare_gradients()


def case_a_second_backward_pass() -> None:
    x, y = batch(7)
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), schedule="1f1b")
    for factor in (1, 3):
        for model in (pair.model, pair.alone):
            loss = factor * model(x, target=y)
            loss.backward(retain_graph=True)
            loss.backward()
        pair.compare_gradients()
    loss = pair.model(x, target=y)
    loss.backward()
    with pytest.raises(RuntimeError, match="earlier backward pass"):
        loss.backward()


def case_gradients_of_arguments() -> None:
    for schedule in ("gpipe", "1f1b", "interleaved"):
        pair = Pair(perceptron(8), nn.CrossEntropyLoss(), schedule=schedule, micro_batches=3)
        x, y = batch(7)
        (before,) = on_device(torch.eye(6))
        losses = []
        for model in (pair.model, pair.alone):
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
    for module in (pair.model, pair.one):  # the whole first stage
        module.zero_grad()
        for parameter in list(module.parameters())[:8]:
            parameter.requires_grad_(False)
    for _ in range(2):
        pair.step(x, y)
    for module in (pair.model, pair.one):
        module.zero_grad()
        module.requires_grad_(False)
    assert not pair.model(x, target=y).requires_grad


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
    """Gloo carries all values, or those of two samples and not those of one."""
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


def case_own_losses() -> None:
    for name in ("labels_are_shifted", "scaled_with_another_term", "a_contrast_between_samples"):
        torch.manual_seed(0)
        pair = Pair(Tagger(name), example=((), labelled(4)))
        for samples, ignored in ((5, "unevenly"), (4, "nowhere"), (1, "unevenly"), (4, "all")):
            call = labelled(samples, ignored)
            there = dict(zip(call, on_device(*call.values()), strict=True))
            found, alone = pair.model(**call), pair.one(**there)
            assert type(found) is type(alone) is Tagged
            if not alone.loss.isnan():
                close(found.loss, alone.loss)
            close(found.logits, alone.logits)
            for each in (found, alone):
                each.loss.backward()
            pair.compare_gradients()
            for each in (pair.model, pair.one):
                each.zero_grad()


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


def case_rows_with_batch_norm() -> None:
    module = nn.Sequential(nn.BatchNorm1d(6), *perceptron(5), nn.BatchNorm1d(5), nn.Linear(5, 5))
    for schedule in ("gpipe", "1f1b"):
        pair = Pair(copy.deepcopy(module), nn.CrossEntropyLoss(), schedule=schedule, replicas=2)
        for rows in ([4, 4], [5, 3], [0, 2], [4, 0]):  # buffers are those of the first with samples
            x, y = batch(sum(rows))
            start = sum(rows[: pair.row])
            mine = slice(start, start + rows[pair.row])
            pair.model(x[mine].cpu(), target=y[mine].cpu()).backward()
            pair.one(x[: rows[0] or rows[1]])
            pair.compare_states()


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


def case_rows_with_own_losses() -> None:
    for name in ("labels_are_shifted", "two_losses"):
        torch.manual_seed(0)
        pair = Pair(Tagger(name), example=((), labelled(4)), replicas=2)
        for rows in ([4, 3], [1, 6], [2, 0], [0, 5]):
            call = labelled(sum(rows))
            start = sum(rows[: pair.row])
            own = {key: each[start : start + rows[pair.row]] for key, each in call.items()}
            pair.model(**own).loss.backward()
            pair.one(**dict(zip(call, on_device(*call.values()), strict=True))).loss.backward()
            pair.compare_gradients()
            for each in (pair.model, pair.one):
                each.zero_grad()
    with pytest.raises(SpreadError, match=r"replicas=2 was given.*net.weights"):
        Pair(Tagger("class_weights"), example=((), labelled(4)), micro_batches=1, replicas=2)


def _with_another_term(output: Any, labels: Tensor) -> Tensor:
    logits = output.logits.flatten(0, 1)
    return nn.functional.cross_entropy(logits, labels.flatten()) + 0.1 * logits.square().mean()


def case_rows_refuse_uneven_means() -> None:
    torch.manual_seed(0)
    model: Any = anyrig.spread(
        Tagger("a_mean_over_samples").double(),
        plan=Pipeline(example=((), labelled(4)), micro_batches=1, replicas=2),
        loss=_with_another_term,
    )
    call = labelled(4)
    row = dist.get_rank() * 2 // dist.get_world_size()
    own = {key: each[2 * row : 2 * row + 2] for key, each in call.items()}
    with pytest.raises(BatchError, match=r"Return \(sum, count\)"):
        model(**own, target=own["labels"]).backward()


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


def case_a_loader_that_knows_no_model_is_refused() -> None:
    data = DataLoader(TensorDataset(torch.arange(4)))
    counts = current_context().counts
    model = anyrig.spread(perceptron(), plan=Pipeline())
    with pytest.raises(BatchError, match=r"anyrig\.distribute\(loader, model\)"):
        anyrig.distribute(data)
    anyrig.distribute(data, model)
    before, counts["pipelines"] = counts["pipelines"], 0  # as in a new program
    anyrig.distribute(data)
    with pytest.raises(SpreadError, match="distributed without a model, so that each rank has sa"):
        anyrig.spread(perceptron(), plan=Pipeline())
    counts["pipelines"], counts["loaders without a model"] = before, 0


def case_rows_of_a_distributed_loader() -> None:
    """The ranks of a pipeline have the same samples; two pipelines have every sample once."""
    x, y = (tensor.cpu() for tensor in batch(23))
    data = DataLoader(TensorDataset(x, y, torch.arange(23)), batch_size=6, shuffle=True)
    ranks = dist.get_world_size()
    for replicas in (1, 2) if ranks == 4 else (1,):
        pair = Pair(perceptron(), nn.CrossEntropyLoss(), replicas=replicas)
        loader = anyrig.distribute(data, pair.model, seed=3)
        alone: list[list[int]] = []
        for u, v, numbers in loader:
            of_ranks: list[Any] = [None] * ranks
            dist.all_gather_object(of_ranks, numbers.tolist())
            size = ranks // replicas
            rows = [of_ranks[number * size] for number in range(replicas)]
            assert of_ranks == [row for row in rows for _ in range(size)]
            whole = [number for row in rows for number in row]
            alone.append(whole)
            for each in (pair.model, pair.one):
                each.zero_grad()
            pair.model(u, target=v).backward()
            pair.alone(*on_device(x[whole], y[whole])).backward()
            pair.compare_gradients()
        assert sorted(number for each in alone for number in each) == list(range(23))


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


def case_clipping_and_scaling() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss())
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (pair.model, pair.one)]
    scalers = [torch.amp.GradScaler(pair.device.type) for _ in range(2)]
    x, y = batch(8)
    for norm_type in (2.0, float("inf")):
        for loss, scaler in zip((pair.model(x, target=y), pair.alone(x, y)), scalers, strict=True):
            scaler.scale(loss).backward()
        with pytest.raises(SpreadError, match=r"clip gradients with model\.clip_grad_norm_"):
            torch.nn.utils.clip_grad_norm_(pair.model.parameters(), 1.0)
        for optimizer, scaler in zip(optimizers, scalers, strict=True):
            scaler.unscale_(optimizer)
        expected = torch.nn.utils.clip_grad_norm_(pair.one.parameters(), 0.01, norm_type)
        close(pair.model.clip_grad_norm_(0.01, norm_type), expected)
        pair.compare_gradients()
        for optimizer, scaler in zip(optimizers, scalers, strict=True):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
    pair.compare_states()


def case_a_gradient_that_overflows() -> None:
    pair = Pair(perceptron())
    its_links = pair.model._engine._pipeline.links
    for overflows in (False, True):
        (gradient,) = on_device(torch.ones(2, 2))
        if overflows and pair.rank == 0:
            gradient[1, 1] = torch.inf
        spread_overflow([None, gradient], pair.device, its_links)
        assert bool(gradient.isfinite().all()) is not overflows


class PlusHalf(nn.Linear):
    """Adds what it computes in float16 from its input, which gets no gradient from that."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x.detach().half()).to(x.dtype)


def case_an_overflow_of_the_only_parameters_in_float16() -> None:
    net = nn.Sequential(*perceptron(8).double(), PlusHalf(5, 5, dtype=torch.float16))
    model: Any = anyrig.spread(net, plan=Pipeline())
    (model(batch(4)[0]).sum() * 1e6).backward()
    own = [each.grad for each in model.parameters() if not isinstance(each, Elsewhere)]
    assert not all(bool(gradient.isfinite().all()) for gradient in own)


class Failing(nn.Module):
    """Raises for negative inputs, or in the backward pass for large ones."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x < -100).any()):
            raise ValueError("a negative input")
        return Fail.apply(x) if bool((x > 100).any()) else x.clone()


class Fail(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("a large input")


class Shifted(nn.Linear):
    """Returns its input unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0 + x


def failing(layer: int) -> nn.Sequential:
    """Return layers that return their inputs, one of which may fail."""
    layers: list[nn.Module] = [Shifted(6, 6) for _ in range(8)]
    layers[layer] = nn.Sequential(Failing(), Shifted(6, 6))
    return nn.Sequential(*layers)


def error_of(call: Any) -> str:
    """Return the error that a call raises as text, with its class and notes."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        call()
    notes = getattr(caught.value, "__notes__", [])
    return "\n".join([f"{type(caught.value).__name__}: {caught.value}", *notes])


def case_failing_stages() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for layer, bad in ((7, -1e3), (0, -1e3), (7, 1e3), (0, 1e3)):
        for schedule in ("1f1b", "gpipe"):
            model: Any = anyrig.spread(
                failing(layer).double(),
                plan=Pipeline(micro_batches=4, schedule=schedule),
                loss=nn.MSELoss(),
            )
            x = torch.zeros(8, 6, dtype=torch.float64, requires_grad=True)
            model(x, target=torch.zeros(8, 6)).backward()
            given = x.detach().clone()
            given[5] = bad  # in micro-batch 2
            given.requires_grad_()
            model._engine._pipeline.links._limit = timedelta(seconds=TIME_LIMIT_SECONDS)
            started = time.monotonic()
            found = error_of(lambda: model(given, target=torch.zeros(8, 6)).backward())  # noqa: B023
            assert time.monotonic() - started < TIME_LIMIT_SECONDS  # no rank waited for its limit
            culprit = 0 if layer == 0 else ranks - 1
            what = "a negative input" if bad < 0 else "a large input"
            assert what in found, found
            assert f"on rank {culprit}" in found, found
            assert "micro-batch 2 of 0 to 3" in found, found
            assert f"in stage {0 if layer == 0 else ranks - 1} of 0 to {ranks - 1}" in found
            assert found.startswith("ValueError" if rank == culprit else "OtherRankError"), found
            assert ("which was given" in found) is (bad < 0)
            assert "has failed" in error_of(lambda: model(x, target=torch.zeros(8, 6)))  # noqa: B023
            anyrig.barrier()


def case_ranks_that_call_differently() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss())
    x, y = batch(8)
    with torch.set_grad_enabled(dist.get_rank() > 0):
        found = error_of(lambda: pair.model(x, target=y))
    assert found.startswith("RankMismatchError"), found
    assert "without gradients" in found
    found = error_of(lambda: pair.model(x[: 5 + dist.get_rank()], target=y[: 5 + dist.get_rank()]))
    assert found.startswith("RankMismatchError"), found
    assert "distribute(loader)" in found
    found = error_of(lambda: pair.model(x[:, : 5 + min(1, dist.get_rank())], target=y))
    assert found.startswith("RankMismatchError"), found
    for _ in range(2):  # later calls agree with their first message
        pair.step(x, y)  # the refused calls have sent nothing
        part = slice(5 + dist.get_rank())
        found = error_of(lambda: pair.model(x[part], target=y[part]))  # noqa: B023
        assert found.startswith("RankMismatchError"), found


def case_layers_in_different_modes() -> None:
    """Modes and frozen parameters of nested layers decide what stages send, too."""
    layers = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(8)]
    pair = Pair(nn.Sequential(*layers), nn.CrossEntropyLoss())
    x, y = batch(8)
    nested = pair.module.get_submodule("0.0")
    for change in (nested.train, nested.requires_grad_):
        pair.step(x, y)
        change(pair.rank == 0)
        found = error_of(lambda: pair.model(x, target=y))
        assert found.startswith("RankMismatchError"), found
        assert "modes or frozen parameters differ" in found
        change(True)


def case_rows_in_different_modes() -> None:
    """The modes decide whether pipelines exchange buffers, so all must have the same."""
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), replicas=2)
    x, y = batch(8)
    mine = slice(0, 4) if pair.row == 0 else slice(4, 8)
    for _ in range(2):  # later calls agree with their first message
        pair.step(x, y, rows=[4, 4])
        pair.model.train(pair.row == 0)
        found = error_of(lambda: pair.model(x[mine], target=y[mine]))
        assert found.startswith("RankMismatchError"), found
        assert "modes" in found
        pair.model.train()


class Turn:
    """Lets ranks wait for an event on one of them; a wait ends after 20 seconds."""

    def __init__(self, pair: Pair, name: str) -> None:
        self._board, self._name = pair.model._engine._pipeline.links.board, name

    def come(self) -> None:
        """Let ranks continue that wait for rank 0."""
        if dist.get_rank() == 0:
            self._board.post(self._name, b"")

    def wait(self) -> None:
        self._board.wait_until(
            lambda: self._board.look([self._name]) != [None], lambda: [0], 20, self._name, ""
        )


def case_the_first_stage_begins_before_the_other_ranks_call() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), micro_batches=4)
    x, y = batch(8)
    pair.step(x, y)  # shows that no buffer is written
    turn = Turn(pair, "a test's first stage")
    hook = pair.module.get_submodule("0").register_forward_hook(lambda *_: turn.come())
    if pair.rank:
        turn.wait()
    pair.step(x, y)
    hook.remove()


def case_no_rank_waits_for_the_weights_of_others() -> None:
    """Ranks get the loss while the last rank has still to compute gradients of weights."""
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), micro_batches=4, schedule="zero-bubble")
    x, y = batch(8)
    pair.step(x, y)  # shows that no buffer is written
    turn = Turn(pair, "a test's loss")
    waited = []
    compute = Stage.backward_weights

    def late(stage: Stage, numbers: Sequence[int]) -> None:
        if 3 in numbers and pair.rank == pair.ranks - 1:
            turn.wait()
            waited.append(3)
        compute(stage, numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "backward_weights", late)
        loss = pair.model(x, target=y)
        turn.come()
    assert waited == ([3] if pair.rank == pair.ranks - 1 else [])
    alone = pair.alone(x, y)
    close(loss, alone)
    for each in (loss, alone):
        each.backward()
    pair.compare_gradients()


class Masking(nn.Module):
    """Returns the samples whose first element is positive."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0]


def case_shapes_that_depend_on_values() -> None:
    layers = [nn.Linear(6, 6) for _ in range(4 * dist.get_world_size())]
    net = nn.Sequential(Masking(), *layers).double()
    model: Any = anyrig.spread(net, plan=Pipeline(), loss=lambda output, _: output.sum())
    x = torch.ones(8, 6, dtype=torch.float64)
    model(x, target=x)
    x[3] = -1
    found = error_of(lambda: model(x, target=x))
    if dist.get_rank() == 0:
        assert "SpreadError" in found, found
    assert "changed although the arguments have the same shapes" in found or dist.get_rank() > 1


def case_refusals() -> None:
    ranks = dist.get_world_size()
    found = error_of(lambda: anyrig.spread(perceptron(ranks - 1), plan=Pipeline()))
    assert found.startswith("SpreadError"), found
    assert "that can be on different ranks" in found
    assert "does not divide" in error_of(
        lambda: anyrig.spread(perceptron(), plan=Pipeline(replicas=ranks))
    )
    width = 6 + dist.get_rank()
    found = error_of(lambda: anyrig.spread(perceptron(width=width), plan=Pipeline()))
    assert found.startswith("RankMismatchError"), found
    pair = Pair(perceptron(), nn.CrossEntropyLoss())
    elsewhere = next(p for p in pair.model.parameters() if isinstance(p, Elsewhere))
    assert f"on rank {elsewhere.on_rank}" in error_of(lambda: elsewhere.square())
    for kept in (pair.model, pair.model.state_dict(), elsewhere):
        assert error_of(lambda: torch.save(kept, io.BytesIO())).startswith("ShardSave")  # noqa: B023
    assert error_of(lambda: copy.deepcopy(pair.model)).startswith("SpreadError")
    state = pair.one.state_dict()
    pair.model.load_state_dict(state)
    pair.model.load_state_dict(pair.model.state_dict())
    pair.compare_states()
    with pytest.raises(RuntimeError):  # the tensor has no memory
        elsewhere.untyped_storage().data_ptr()
    assert elsewhere.device == pair.device


def case_sums_end_with_a_rank_that_fails() -> None:
    its_links = Pair(perceptron(), nn.CrossEntropyLoss()).model._engine._pipeline.links
    its_links._limit = timedelta(seconds=TIME_LIMIT_SECONDS)
    started = time.monotonic()
    if dist.get_rank() == 0:
        its_links.fail(ValueError("a test's failure"))
    else:
        found = error_of(lambda: its_links.add_up(torch.ones(1)))
        assert found.startswith("OtherRankError"), found
        assert "a sum over ranks, and rank 0 failed: ValueError: a test's failure" in found
    assert time.monotonic() - started < TIME_LIMIT_SECONDS  # no rank waited for its limit
    anyrig.barrier()


def case_sums_wait_for_a_late_rank_until_their_limit() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TIME_LIMIT_VARIABLE, "60")
        its_links = Pair(perceptron(), nn.CrossEntropyLoss()).model._engine._pipeline.links
    rank, ones = dist.get_rank(), torch.ones(3)
    if rank == 0:
        time.sleep(0.3)
    its_links.add_up(ones)
    assert ones.tolist() == [dist.get_world_size()] * 3
    its_links._limit = timedelta(seconds=0.3)
    if rank:
        found = error_of(lambda: its_links.add_up(ones))
        assert found.startswith("RankWaitError"), found
        assert "a sum over ranks" in found
    anyrig.barrier()


CASES = [name for name in list(globals()) if name.startswith("case_")]
ROWS = [name for name in CASES if name.startswith("case_rows")]
MANY = ["case_schedules_of_more_micro_batches"]
WHOLE = [name for name in CASES if name not in {*ROWS, *MANY}]
ON_FOUR = [
    *ROWS,
    "case_gradients_of_arguments",
    "case_clipping_and_scaling",
    "case_ranks_that_call_differently",
    "case_shapes_that_depend_on_values",
]
# Cases that depend on the device: transfers by NCCL, copies to the device, streams.
ON_GPUS = [
    "case_a_device_that_a_later_stage_reads",
    "case_automatic_schedule",
    "case_outputs_and_a_loss_outside",
    "case_checkpointing",
    "case_clipping_and_scaling",
    "case_skip_connections_and_tied_weights",
]
