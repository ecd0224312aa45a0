"""`micro_batches="auto"`, when an example shows what a batch looks like."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anyrig
from anyrig.hardware import spec_of_key
from anyrig.parallel.engines.pipeline.counted_micro_batches import (
    ISSUE_SECONDS,
    PartWork,
    choose_by_work,
    step_seconds,
)
from anyrig.parallel.engines.pipeline.micro_batches import MicroBatches

BEGUN = MicroBatches(8, "begun", False)


def test_a_step_takes_the_turns_of_its_schedule() -> None:
    part = PartWork(seconds=3.0, operators=1)
    assert step_seconds(part, "1f1b", 2, 8, True) == pytest.approx(9 * 3.0)
    assert step_seconds(part, "gpipe", 4, 8, False) == pytest.approx(11 * 3.0)
    assert step_seconds(part, "interleaved", 4, 8, True) == pytest.approx((8 + 3 / 2) * 3.0)


def test_a_step_takes_at_least_as_long_as_its_operators_are_issued() -> None:
    part = PartWork(seconds=1e-9, operators=100)
    issued = 3 * 100 * ISSUE_SECONDS
    assert step_seconds(part, "1f1b", 2, 8, one_thread=True) == pytest.approx(8 * issued)
    assert step_seconds(part, "1f1b", 2, 8, one_thread=False) == pytest.approx(9 * issued / 2)


def choose(fixed: float, of_batch: float, samples: int = 64, operators: int = 0) -> int:
    """Return the chosen number if each takes `fixed` seconds and its part of `of_batch` seconds."""
    chosen = choose_by_work(
        BEGUN,
        "1f1b",
        2,
        samples,
        lambda number: PartWork(fixed + of_batch / number, operators),
        one_thread=True,
    )
    assert not chosen.is_given
    return chosen.number


def test_large_operators_take_many_micro_batches_and_small_ones_few() -> None:
    assert choose(fixed=0.0, of_batch=1.0) == 32
    assert choose(fixed=0.01, of_batch=1.0) == 8  # (m + 1) (0.01 + 1 / m) is least at m = 10
    assert choose(fixed=1.0, of_batch=1.0) == 2
    assert choose(fixed=0.0, of_batch=1.0, samples=3) == 3
    assert choose(fixed=0.0, of_batch=1e-6, operators=100) == 2


def test_the_choice_begins_without_counted_work() -> None:
    assert choose_by_work(BEGUN, "1f1b", 2, 64, lambda number: None, True) is BEGUN


@pytest.mark.gpus(2)
def test_the_example_decides() -> None:
    found = {}
    for width, samples in ((16, 64), (2048, 4096)):
        layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))
        model = anyrig.spread(
            layers,
            plan=anyrig.Pipeline(example=((torch.randn(samples, width),), {})),
            loss=nn.MSELoss(),
        )
        text = str(anyrig.explain(model))
        assert f"as a step with {samples} samples takes" in text
        assert "ms by published rates, against" in text
        found[width] = int(text.partition("micro-batches: ")[2].partition(",")[0])
    assert found[16] < found[2048]
    model = anyrig.spread(
        nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))), plan=anyrig.Pipeline()
    )
    assert ", 4 for each of " in str(anyrig.explain(model))


@pytest.mark.gpus(2)
def test_each_micro_batch_reads_weights_three_times_and_adds_its_gradients() -> None:
    layers = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8)))
    model = anyrig.spread(
        layers,
        ["cuda:0", "cuda:1"],
        plan=anyrig.Pipeline(example=((torch.randn(2, 2048),), {})),
        loss=nn.MSELoss(),
    )
    text = str(anyrig.explain(model))
    milliseconds = float(text.partition("as a step with 2 samples takes ")[2].partition(" ms")[0])
    # Three turns of two devices. Adding gradients reads two tensors and writes one.
    weight_bytes = sum(layer.weight.nbytes for layer in layers)
    bandwidth = spec_of_key("A100-80GB").memory_bytes_per_second
    assert milliseconds / 1e3 == pytest.approx(3 * (3 + 3) * weight_bytes / 2 / bandwidth, rel=0.01)
