"""Shares of a spread module that follow what its first steps took."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import anyrig
from anyrig.parallel.ranks.balance import Balance
from anyrig.parallel.shares.measure import MemoryMark, StepClock
from anyrig.parallel.shares.shares import Shares
from anyrig.parallel.shares.trial import MEASURED_STEPS, SPEED_ROUNDS, WARM_UP_STEPS, Trial
from anyrig.processes.group.membership import Group

ROWS = 4096


def train(model: nn.Module, steps: int) -> list[tuple[int, ...]]:
    """Return how each step was split."""
    x, target = torch.randn(ROWS, 64), torch.randn(ROWS, 64)
    splits = []
    for _ in range(steps):
        model(x, target=target).backward()
        splits.append(anyrig.explain(model).shares.split(ROWS))
    return splits


def spread(kind: str, weights: tuple[float, ...]) -> nn.Module:
    # Wide enough for kernels to take longer than their launches, on virtual GPUs, too.
    net = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 64)).to("cuda:0")
    trial = Trial(kind, (None,) * len(weights))  # type: ignore[arg-type]
    rig = anyrig.Rig.parse("cuda:0,1")
    shares = Shares(weights, "to begin with", trial=trial)
    return anyrig.spread(net, rig, plan=anyrig.Replicas(shares=shares), loss=nn.MSELoss())


@pytest.mark.gpus(2)
def test_alike_devices_come_to_like_shares_and_keep_them() -> None:
    model = spread("speed", (7.0, 1.0))
    steps = SPEED_ROUNDS * (WARM_UP_STEPS + MEASURED_STEPS) + 3
    splits = train(model, steps)
    assert splits[: WARM_UP_STEPS + MEASURED_STEPS] == [(3584, 512)] * 3
    assert 0.4 * ROWS < splits[-1][1] <= 0.55 * ROWS
    assert splits[-1] == splits[-2]
    shares = anyrig.explain(model).shares
    assert shares.held
    assert shares.reason.startswith("by speed: ")
    assert "samples in" in shares.reason


@pytest.mark.gpus(1)
def test_a_step_lasts_until_its_last_mark() -> None:
    device = torch.device("cuda:0")
    stream = torch.accelerator.current_stream(device)
    matrix = torch.randn(512, 512, device=device)
    clock = StepClock([device], [4])
    clock.start()
    clock.mark(stream)
    begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    begin.record(stream)
    for _ in range(8):
        matrix = matrix @ matrix
    end.record(stream)
    clock.mark(stream)
    measures = clock.read()
    assert measures is not None
    assert (measures[0].seconds or 0.0) >= begin.elapsed_time(end) / 1e3 > 0


@pytest.mark.gpus(2)
def test_steps_without_a_backward_tell_nothing() -> None:
    model = spread("speed", (7.0, 1.0))
    with torch.no_grad():
        train_free = [model(torch.randn(8, 64)) for _ in range(20)]
    assert len(train_free) == 20
    for _ in range(20):
        model(torch.randn(8, 64))
    assert not anyrig.explain(model).shares.held
    assert anyrig.explain(model).shares.weights == (7.0, 1.0)


@pytest.mark.gpus(2)
def test_memory_is_measured() -> None:
    gc.collect()  # memory of earlier tests must not be freed within a measured step
    for index in range(2):
        torch.cuda.reset_peak_memory_stats(index)  # earlier peaks would hide these
    model = spread("memory", (1.0, 1.0))
    ballast = torch.zeros(2**24, device="cuda:0")  # the memory of some thousand samples
    splits = train(model, WARM_UP_STEPS + MEASURED_STEPS + 1)
    assert splits[-1][0] < splits[0][0]
    assert anyrig.explain(model).shares.reason == "by memory: measured peaks of the first steps"
    del ballast


@pytest.mark.gpus(2)
@pytest.mark.parametrize("kind", ["speed", "memory"])
def test_the_peaks_of_memory_stay_the_program_s(kind: str) -> None:
    for index in range(2):
        torch.empty(2**29, dtype=torch.uint8, device=f"cuda:{index}")  # freed at once
    peaks = [torch.cuda.max_memory_allocated(index) for index in range(2)]
    model = spread(kind, (1.0, 1.0))
    train(model, WARM_UP_STEPS + MEASURED_STEPS + 1)
    assert [torch.cuda.max_memory_allocated(index) for index in range(2)] == peaks
    if kind == "memory":
        assert "an earlier peak hides it" in anyrig.explain(model).shares.reason


@pytest.mark.gpus(1)
def test_a_rank_that_waits_for_the_reports_of_another_keeps_its_highest_peak() -> None:
    device = torch.device("cuda:0")
    shares = Shares((1.0, 1.0), "to begin with", trial=Trial("memory", (None, None)))
    balance = Balance(Group(0, 2, device, "nccl", "for this test"), shares)
    torch.cuda.reset_peak_memory_stats(device)
    balance._memory = MemoryMark.of(device)
    torch.empty(2**20, device=device)
    for _ in range(200):
        balance.report(samples=1, seconds=0.1)
    assert balance._steps[0].peak_bytes is not None
    assert len(balance._steps) == 65
