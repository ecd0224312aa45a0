"""A batch is copied once, and workers share the pages of what they import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyrig
from anyrig.parallel.engines.processes.pool import Worker, pool_of_process

PART_BYTES = 2**20
LIMIT_SECONDS = 60


@pytest.fixture(autouse=True)
def _new_workers() -> Iterator[None]:
    before = torch.get_num_threads()
    pool_of_process().end()
    yield
    pool_of_process().end()  # those that other files do not need
    torch.set_num_threads(before)


def spread(module: nn.Module, processes: int) -> Any:
    return anyrig.spread(module, "cpu", plan=anyrig.Replicas(processes=processes))


def workers() -> list[Worker]:
    return pool_of_process()._workers


class Located(nn.Module):
    """Returns ones if its part of the batch is where it was put, and was not copied from there."""

    def __init__(self, batch: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.script = os.getpid()
        self.begin, self.end = batch.data_ptr(), batch.data_ptr() + batch.nbytes

    def forward(self, x: Tensor, fails: bool = False) -> Tensor:
        place = x.data_ptr()
        if os.getpid() == self.script:
            is_there = self.begin <= place < self.end
        elif fails:
            raise LookupError
        else:
            is_there = any(
                int(line.split("-")[0], 16) <= place < int(line.split()[0].split("-")[1], 16)
                for line in Path("/proc/self/maps").read_text().splitlines()
                if "memfd:anyrig" in line
            )
        return self.scale * x.new_full((len(x), 1), is_there)


def test_each_part_of_a_batch_is_copied_at_most_once() -> None:
    """This process computes with a part of the batch itself, workers with the shared copy."""
    batch = torch.randn(3 * 64, PART_BYTES // 64 // 4)
    model = spread(Located(batch), 3)
    for _ in range(3):
        output = model(batch)
        assert output.tolist() == [[1.0]] * len(batch)
        output.sum().backward()
        with torch.no_grad():
            model(batch)
        with pytest.raises(LookupError):
            model(batch, fails=True)
    for each in workers():
        sizes = [segment.block.size for segment in each._link._segments]
        assert sum(sizes) < 1.5 * PART_BYTES, sizes


def own_share(process: int) -> float:
    """Return the part of a process's memory whose pages no other process has."""
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
        name, size, *_ = line.split()
        sizes[name] = int(size)
    return (sizes["Private_Clean:"] + sizes["Private_Dirty:"]) / sizes["Rss:"]


def test_workers_share_the_pages_of_what_they_import() -> None:
    model = anyrig.spread(
        nn.Linear(8, 4), "cpu", anyrig.Replicas(processes=3), loss=nn.CrossEntropyLoss()
    )
    for _ in range(2):
        model(torch.randn(6, 8), target=torch.randint(4, (6,))).backward()
    shares = [own_share(each.process or 0) for each in workers()]
    assert max(shares) < 1 / 8, shares  # 0.7 in processes that import on their own


def test_a_killed_fork_server_ends_the_workers_and_training_goes_on() -> None:
    model = spread(nn.Linear(3, 2), 3)
    model(torch.ones(6, 3)).sum().backward()
    pool, before = pool_of_process(), workers()
    assert pool._server is not None
    os.kill(pool._server._process.pid, signal.SIGKILL)
    until = time.monotonic() + LIMIT_SECONDS
    while not all(each.has_ended() for each in before):
        assert time.monotonic() < until, "a worker is left"
        time.sleep(0.02)
    with pytest.warns(RuntimeWarning, match=r"ended for an unknown reason between two steps"):
        model(torch.ones(6, 3)).sum().backward()
    assert {each.process for each in before}.isdisjoint(each.process for each in workers())


def test_the_memory_of_freed_gradients_is_used_again_and_that_of_others_is_not() -> None:
    model = spread(nn.Linear(3, 2, bias=False), 2)
    parameter = model.module.weight

    def gradient_of(x: float) -> Tensor:
        parameter.grad = None
        model(torch.full((4, 3), x)).sum().backward()
        assert parameter.grad is not None
        return parameter.grad

    first, kept = gradient_of(1.0), gradient_of(2.0)
    assert torch.equal(first, torch.full((2, 3), 4.0))
    place = first.data_ptr()
    del first
    assert gradient_of(3.0).data_ptr() == place
    assert torch.equal(kept, torch.full((2, 3), 8.0))


def test_a_gradient_has_a_storage_of_its_own() -> None:
    model = spread(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), 2)
    model(torch.ones(4, 3)).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.untyped_storage().nbytes() == parameter.grad.nbytes
