"""The window of steps that is profiled: its limits, its marks, and what it leaves behind."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils.data.dataloader import _BaseDataLoaderIter

from anyrig.rehearsal.measured import profiled_window
from anyrig.rehearsal.measured.profiled_window import ProfiledWindow
from anyrig.rehearsal.measured.reading import record_of_window
from anyrig.rehearsal.process_record import ProcessRecord

DOCS = Path(__file__).parents[3] / "docs" / "rehearsal.md"
LOG_LEVEL = "KINETO_LOG_LEVEL"


class Failing(nn.Module):
    """A layer that raises an error within a layer of its own, which the program catches."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with suppress(RuntimeError):
            self.inner(x)
        return x


def train(
    steps: int,
    in_step: Callable[[int], Any] = lambda step: None,
    layer: nn.Module | None = None,
    window: ProfiledWindow | None = None,
) -> ProfiledWindow:
    """Train a model of three modules for some steps, with a window around them."""
    window = window or ProfiledWindow()
    model = nn.Sequential(nn.Linear(4, 4), layer or nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    window.start()
    try:
        for step in range(1, steps + 1):
            model(torch.ones(2, 4)).sum().backward()
            in_step(step)
            optimizer.step()
            optimizer.zero_grad()
    finally:
        window.stop()
    return window


def read(window: ProfiledWindow, folder: Path) -> ProcessRecord:
    return record_of_window(window, folder, 0, 3)


def state() -> list[object]:
    """Return what a window changes in this process."""
    return [
        torch.autograd.profiler.profile._prepare_trace,
        _BaseDataLoaderIter.__next__,
        len(_global_forward_hooks) + len(_global_forward_pre_hooks),
        len(_global_optimizer_post_hooks),
        [*warnings.filters],
        os.environ.get(LOG_LEVEL),
        torch.autograd._profiler_enabled(),
    ]


@pytest.mark.parametrize(
    ("limit", "value", "profiled"),
    [
        ("MOST_STEPS", 8, 8),
        ("MOST_STEPS", 3, 3),
        ("_MOST_SECONDS", -1.0, 1),
        ("_MOST_CALLS", 5, 2),  # of three modules in each step
    ],
)
def test_the_first_limit_ends_the_profile(
    limit: str, value: float, profiled: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiled_window, limit, value)
    running = []
    window = train(10, lambda step: running.append(torch.autograd._profiler_enabled()))
    assert running == [False, *[True] * profiled, *[False] * (9 - profiled)]
    assert (window.steps_taken, len(window.loaded), window.problems) == (10, profiled, [])
    record = read(window, tmp_path)
    assert (record.rank, record.steps_taken, len(record.ends)) == (3, 10, profiled)
    assert [*tmp_path.iterdir()] == []


def test_the_docs_state_the_limits() -> None:
    text = " ".join(DOCS.read_text(encoding="utf-8").split())
    limits = (
        f"ends after {profiled_window.MOST_STEPS} further steps, "
        f"{profiled_window._MOST_SECONDS:.0f} seconds or {profiled_window._MOST_CALLS:,} calls of "
        "modules"
    )
    assert limits in text


@pytest.mark.parametrize("steps", [1, 3, 12])
@pytest.mark.parametrize("own_level", [None, "3"])
def test_nothing_is_left_behind(
    steps: int, own_level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own_level is not None:
        monkeypatch.setenv(LOG_LEVEL, own_level)
    before, during = state(), []
    train(steps, lambda step: during.append(state()))
    assert state() == before
    for number, one in enumerate(during, 1):
        differs = [own != usual for own, usual in zip(one, before, strict=True)]
        is_profiled = 1 < number <= 9
        # Steps are counted until the end. The level is set for a moment only.
        assert differs == [*[is_profiled] * 3, True, is_profiled, False, is_profiled]


def test_steps_of_the_first_optimizer_count() -> None:
    other = nn.Linear(1, 1)
    second = torch.optim.SGD(other.parameters(), 0.1)

    def train_the_other(step: int) -> None:
        if step > 1:
            other(torch.ones(1, 1)).sum().backward()
            second.step()
            second.zero_grad()

    assert train(4, train_the_other).steps_taken == 4


def test_a_profiler_that_fails_does_not_end_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise OSError("no room\nfor it")

    monkeypatch.setattr(profiled_window, "profile", fail)
    before = state()
    window = train(3)
    assert state() == before
    record = read(window, tmp_path)
    assert record.problems == ("PyTorch's profiler failed: OSError: no room",)
    assert (record.steps_taken, record.ends, len(record.record.intervals)) == (3, (), 0)


class Unreadable(ProfiledWindow):
    """A window whose trace is something else."""

    def export(self, path: Path) -> bool:
        path.write_text("{}")
        return True


def test_a_trace_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    record = read(train(3, window=Unreadable()), tmp_path)
    (problem,) = record.problems
    assert problem.startswith("the trace of PyTorch's profiler could not be read: ")
    assert "is not a trace of Kineto" in problem
    assert record.steps_taken == 3
    assert [*tmp_path.iterdir()] == []


def test_an_error_in_a_module_ends_its_mark(tmp_path: Path) -> None:
    record = read(train(3, lambda step: torch.ones(3).cos(), Failing()), tmp_path).record
    columns = record.intervals
    found = {
        (record.names[name], record.modules[module] if module >= 0 else None)
        for name, module in zip(columns.name, columns.module, strict=True)
    }
    assert {("aten::addmm", "0"), ("aten::cos", None)} <= found
    assert {module for name, module in found if name == "aten::cos"} == {None}
    assert {module for name, module in found if name == "aten::linear"} == {"0", "1.inner"}


def test_times_count_from_the_origin(tmp_path: Path) -> None:
    origin = time.time_ns()
    window = train(4)
    elapsed = (time.time_ns() - origin) / 1e9
    record = record_of_window(window, tmp_path, origin, 0)
    moments = [record.begin, *(end.seconds for end in record.ends)]
    assert moments == sorted(moments)
    assert 0 < moments[0] < moments[-1] < elapsed
    assert record.host_begin == record.record.intervals.complete_from == record.begin
    assert [end.host_seconds for end in record.ends] == moments[1:]  # no work of a GPU to wait for
