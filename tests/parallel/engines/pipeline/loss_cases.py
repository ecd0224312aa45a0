"""What ranks do in `test_pipeline_over_ranks.py`: losses, gradients and steps."""

from __future__ import annotations

import pytest
import torch
from pair_over_ranks import Pair, batch, close, on_device, perceptron
from pipeline.models_with_losses import Tagged, Tagger
from pipeline.models_with_losses import batch as labelled
from torch import Tensor, nn


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
