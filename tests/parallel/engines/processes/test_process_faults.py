"""What fails in a process is raised in the script, names its place, and leaves nothing behind."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel.engines.processes.pool import pool_of_process

PARENT = os.getpid()
LIMIT_SECONDS = 120
SCRIPT_SECONDS = 400  # two imports of torch, on a busy machine
IN_OTHER, IN_THIS = torch.tensor([[0.0], [7.0]]), torch.tensor([[7.0], [0.0]])


@pytest.fixture(autouse=True, scope="module")
def _without_workers_of_other_files() -> None:
    pool_of_process().end()


class Faulty(nn.Module):
    """Does what `fault` says in the process whose part has a seven."""

    def __init__(self, fault: str, parent: int) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.fault, self.parent = fault, parent

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        if bool((x == 7).any()):
            if self.fault == "raise":
                raise LookupError("seven is not allowed")
            if self.fault == "kill" and os.getpid() != self.parent:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "interrupt":
                raise KeyboardInterrupt
            if self.fault == "sleep" and os.getpid() != self.parent:
                time.sleep(LIMIT_SECONDS)
            if self.fault == "backward":
                return RaisesInBackward.apply(self.layer(x))
        output = self.layer(x)
        return output if y is None else functional.cross_entropy(output, y)


class RaisesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise LookupError("no gradient of seven")


def spread(module: nn.Module, **options: Any) -> Any:
    return anyrig.spread(module, "cpu", plan=anyrig.Replicas(processes=2), **options)


def pids() -> list[int]:
    return [worker.process for worker in pool_of_process()._workers]


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_for_end(processes: list[int]) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while any(map(is_alive, processes)):
        assert time.monotonic() < until, "a worker is left"
        time.sleep(0.05)


def assert_goes_on(model: Any) -> None:
    model.module.fault = "none"
    model(torch.ones(2, 1)).sum().backward()


def test_an_exception_of_a_worker_has_its_traceback() -> None:
    model = spread(Faulty("raise", PARENT))
    with pytest.raises(LookupError, match="seven is not allowed") as raised:
        model(IN_OTHER)
    before = pids()
    last = traceback.extract_tb(raised.tb)[-1]
    assert (last.name, last.line) == ("forward", 'raise LookupError("seven is not allowed")')
    assert f"in process 1 (pid {before[0]}), which was given" in raised.value.__notes__[-1]
    assert_goes_on(model)
    assert pids() == before


def test_an_exception_of_this_process_is_raised_as_it_is() -> None:
    model = spread(Faulty("raise", PARENT))
    with pytest.raises(LookupError, match="seven is not allowed") as raised:
        model(IN_THIS)
    assert raised.value.__cause__ is None
    assert "in this process, which was given" in raised.value.__notes__[-1]
    assert_goes_on(model)


@pytest.mark.parametrize("x", [IN_OTHER, IN_THIS], ids=["in a worker", "in this process"])
def test_an_exception_ends_the_wait_for_a_count_of_targets(x: Tensor) -> None:
    model = spread(Faulty("raise", PARENT))
    model.module.fault = "none"
    model(torch.ones(2, 1), torch.tensor([0, 1])).backward()
    model.module.fault = "raise"
    with pytest.raises(LookupError, match="seven is not allowed"):
        model(x, torch.tensor([0, 1]))
    assert_goes_on(model)


@pytest.mark.parametrize("x", [IN_OTHER, IN_THIS], ids=["in a worker", "in this process"])
def test_an_exception_in_the_backward_pass(x: Tensor) -> None:
    model = spread(Faulty("backward", PARENT))
    output = model(x)
    with pytest.raises(LookupError, match="no gradient of seven"):
        output.sum().backward()
    with pytest.raises(SpreadError, match=r"an earlier backward pass.*call the model again"):
        output.sum().backward()
    assert_goes_on(model)


def test_a_worker_that_is_killed_in_a_step_is_named() -> None:
    model = spread(Faulty("kill", PARENT))
    assert_goes_on(model)
    model.module.fault = "kill"
    (before,) = pids()
    with pytest.raises(SpreadError, match=rf"process 1 \(pid {before}\).*SIGKILL.*next step"):
        model(IN_OTHER)
    assert not is_alive(before)
    assert_goes_on(model)


def test_a_worker_that_is_killed_between_steps_is_started_again() -> None:
    model = spread(Faulty("none", PARENT))
    output = model(torch.ones(2, 1))
    (worker,) = pool_of_process()._workers
    before = worker.process
    os.kill(before, signal.SIGKILL)
    until = time.monotonic() + LIMIT_SECONDS
    while not worker.has_ended():  # its process may be gone before its socket is closed
        assert time.monotonic() < until, "a worker is left"
        time.sleep(0.01)
    with pytest.warns(RuntimeWarning, match=rf"process 1 \(pid {before}\).*between two steps"):
        assert_goes_on(model)
    with pytest.raises(SpreadError, match=r"have ended since.*call the model again"):
        output.sum().backward()


def test_a_worker_that_is_killed_before_the_backward_pass_is_named() -> None:
    model = spread(Faulty("none", PARENT))
    output = model(torch.ones(2, 1))
    (before,) = pids()
    os.kill(before, signal.SIGKILL)
    wait_for_end([before])
    # As soon as the system has closed what the worker had open, or while this process waits.
    lost = rf"process 1 \(pid {before}\).*SIGKILL.*(its|the) backward.*next step"
    with pytest.raises(SpreadError, match=lost):
        output.sum().backward()
    assert_goes_on(model)


def test_an_interrupt_of_a_worker_alone_does_nothing() -> None:
    model = spread(Faulty("none", PARENT))
    assert_goes_on(model)
    (before,) = pids()
    os.kill(before, signal.SIGINT)
    assert_goes_on(model)
    assert pids() == [before]


def test_workers_end_while_a_thread_waits_for_one() -> None:
    model, pool, raised = spread(Faulty("none", PARENT)), pool_of_process(), []
    assert_goes_on(model)
    model.module.fault = "sleep"

    def call() -> None:
        try:
            model(IN_OTHER)
        except SpreadError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    begin = time.monotonic()
    while pool.lock.acquire(blocking=False):  # until the thread has it
        pool.lock.release()
        time.sleep(0.01)
    pool.end()
    thread.join(LIMIT_SECONDS)
    assert time.monotonic() - begin < LIMIT_SECONDS / 2
    assert "ended by SIGKILL" in str(raised[0])
    assert_goes_on(model)


def test_an_interrupt_in_the_forward_ends_the_workers() -> None:
    model = spread(Faulty("interrupt", PARENT))
    before = pids()
    with pytest.raises(KeyboardInterrupt):
        model(IN_THIS)
    assert not any(map(is_alive, before))
    assert_goes_on(model)


def test_an_interrupt_while_a_worker_computes() -> None:
    model = spread(Faulty("sleep", PARENT))
    assert_goes_on(model)
    model.module.fault = "sleep"
    before = pids()
    timer = threading.Timer(0.5, _thread.interrupt_main)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        model(IN_OTHER)
    assert time.monotonic() - begin < LIMIT_SECONDS / 2
    assert not any(map(is_alive, before))
    assert_goes_on(model)


SCRIPT = """
import os, sys, time, torch, anyrig
from torch import nn

class Net(nn.Module):  # of __main__, so it travels by value
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
    def forward(self, x):
        if PARENT not in (None, os.getpid()):
            print("a worker computes", flush=True)
            time.sleep(600)
        return self.layer(x) * FACTOR

PARENT = None  # of workers that never end a forward
FACTOR = 2.0
net = Net()
model = anyrig.spread(
    net, "cpu", plan=anyrig.Replicas(processes=2),
    loss=lambda out, y: nn.functional.mse_loss(out, y),
)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x, y = torch.randn(8, 3), torch.randn(8, 2)
losses = []
for step in range(3):
    FACTOR = 2.0 + step
    expected = nn.functional.mse_loss(net(x), y)
    loss = model(x, target=y)
    torch.testing.assert_close(loss, expected)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
from anyrig.parallel.engines.processes.pool import pool_of_process
print(*(worker.process for worker in pool_of_process()._workers), flush=True)
if sys.argv[1] == "raise":
    raise ValueError("the end")
if sys.argv[1] == "wait":
    time.sleep(600)
if sys.argv[1] == "wait for a forward":
    PARENT = os.getpid()
    model(x, target=y)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def started(script: Path, how: str) -> Any:
    return subprocess.Popen(
        [sys.executable, str(script), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_nothing_is_left_when_a_script_raises(script: Path) -> None:
    with started(script, "raise") as process:
        printed, errors = process.communicate(timeout=SCRIPT_SECONDS)
    workers = [*map(int, printed.split())]
    assert len(workers) == 1, errors
    assert "ValueError: the end" in errors
    assert not any(map(is_alive, workers))


@pytest.mark.parametrize("how", ["wait", "wait for a forward"])
def test_nothing_is_left_when_a_script_is_killed(script: Path, how: str) -> None:
    with started(script, how) as process:
        workers = [*map(int, process.stdout.readline().split())]
        assert len(workers) == 1
        if how == "wait for a forward":
            assert process.stdout.readline() == "a worker computes\n"
        process.kill()
        process.wait(LIMIT_SECONDS)
    wait_for_end(workers)
