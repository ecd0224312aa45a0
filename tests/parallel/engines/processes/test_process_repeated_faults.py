"""After each failure, however often, training goes on with the numbers of one device."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from process_pairs import SAMPLES, Pair
from torch import Tensor, nn
from trained_models import CLASSES, WIDTH, assert_same_numbers

from anyrig.errors import SpreadError
from anyrig.parallel.engines.processes.pool import Worker, pool_of_process

pytestmark = pytest.mark.usefixtures("double_precision")

REPEATS = [2, pytest.param(25, marks=pytest.mark.sweep)]
KILLS = [1, pytest.param(25, marks=pytest.mark.sweep)]
SPARE_BYTES = 2**22
LIMIT_SECONDS = 60


def fails(*_: Any) -> NoReturn:
    raise LookupError("seven is not allowed")


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    backward = staticmethod(fails)


class Faulty(nn.Linear):
    """Does what `fault` says, in a worker or in the process that starts it."""

    def __init__(self) -> None:
        super().__init__(WIDTH, CLASSES)
        self.fault, self.where, self.parent = "", "", os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        if self.where != ("worker" if os.getpid() != self.parent else "script"):
            return output
        if self.fault == "forward":
            fails()
        if self.fault == "backward":
            return Fails.apply(output)
        if self.fault == "hook":
            output.register_hook(fails)
        if self.fault == "memory":
            torch.empty(2**62, dtype=torch.uint8)
        if self.fault == "result":
            return output[..., None].expand(*output.shape, SPARE_BYTES)
        return output


def batch(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, WIDTH), torch.randint(CLASSES, (samples,))


def worker() -> Worker:
    return pool_of_process()._workers[0]  # other tests may have left more


def files_of(process: int) -> int:
    return len([*Path(f"/proc/{process}/fd").iterdir()])


@pytest.mark.parametrize("repeats", REPEATS)
@pytest.mark.parametrize("where", ["worker", "script"])
@pytest.mark.parametrize("fault", ["forward", "backward", "hook", "memory"])
def test_an_exception_ends_one_step_alone(fault: str, where: str, repeats: int) -> None:
    pair = Pair(Faulty())
    pair.step()
    process, files = worker().process, []
    place = f"process 1 (pid {process})" if where == "worker" else "this process"
    error, message = (RuntimeError, "alloc") if fault == "memory" else (LookupError, "seven")
    for _ in range(repeats):
        pair.several.fault, pair.several.where = fault, where
        x, y = batch()
        with pytest.raises(error, match=message) as raised:
            pair.model(x, target=y).backward()
        assert f"in {place}, which was given" in raised.value.__notes__[-1]
        last = traceback.extract_tb(raised.tb)[-1]
        assert (last.filename, raised.value.__cause__) == (__file__, None)
        assert last.name == ("forward" if fault == "memory" else "fails")
        assert last.line in Path(__file__).read_text()
        pair.several.where = ""
        pair.step()
        pair.step()
        files.append((files_of(process), files_of(os.getpid())))
    assert worker().process == process
    # Fewer if what an earlier test left was collected meanwhile.
    assert all(last <= first for last, first in zip(files[-1], files[0], strict=True)), files


@contextmanager
def little_memory(process: int) -> Iterator[None]:
    """Leave a process hardly more memory than it has."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_BYTES
    before = resource.prlimit(process, resource.RLIMIT_AS, (limit, -1))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_AS, before)


@pytest.mark.parametrize("repeats", REPEATS)
@pytest.mark.parametrize("what", ["arguments", "result"])
def test_a_worker_without_memory_for_a_message(what: str, repeats: int) -> None:
    pair = Pair(Faulty())
    pair.step()
    process = worker().process
    pair.several.fault, pair.several.where = "result", "worker" if what == "result" else ""
    samples = SAMPLES if what == "result" else SPARE_BYTES // WIDTH
    for _ in range(repeats):
        with little_memory(process), pytest.raises(OSError, match="Cannot allocate") as raised:
            pair.model(batch(samples)[0])
        assert f"in process 1 (pid {process}), which was given" in raised.value.__notes__[-1]
        del raised
        pair.several.where = ""
        pair.step(samples)
        pair.several.where = "worker" if what == "result" else ""
    assert worker().process == process


def kill_at_random(process: int, delays: random.Random) -> None:
    delay = delays.uniform(0, 0.1)
    threading.Timer(delay, os.kill, (process, signal.SIGKILL)).start()


def train(pair: Pair, seconds: float) -> None:
    """Train in processes, and with each batch that has succeeded on one device."""
    one, several = pair.optimizers
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        x, y = batch()
        several.zero_grad()
        pair.model(x, target=y).backward()
        several.step()
        one.zero_grad()
        pair.loss(pair.one(x), y).backward()
        one.step()


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_worker_is_named_and_replaced(kills: int) -> None:
    pair, delays = Pair(), random.Random(0)
    pair.step()
    for _ in range(kills):
        process = worker().process
        kill_at_random(process, delays)
        with pytest.raises((SpreadError, RuntimeWarning)) as raised:
            train(pair, LIMIT_SECONDS)
        way = {SpreadError: "while .* go on with the next step", RuntimeWarning: "between"}
        assert re.match(
            rf"process 1 \(pid {process}\), which computes .*, ended by SIGKILL, .* exhausted, "
            + way[raised.type],
            str(raised.value),
        )
        assert_same_numbers(pair.several, pair.one)
        pair.step()
