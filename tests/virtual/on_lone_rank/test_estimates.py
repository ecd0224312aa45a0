"""Rank 0 alone estimates collectives, and messages, as the clock charges them for all ranks."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
import torch.distributed as dist

from anyrig.virtual import clock

pytestmark = pytest.mark.usefixtures("group")

MICROSECONDS = 1e6


def time_estimator(group: Any = None) -> Any:
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    return c10d._time_estimator(group, torch.device("cuda"))


def charged_seconds() -> float:
    torch.cuda.synchronize()
    return clock().devices[0].collective_seconds


@pytest.mark.parametrize("ranks", [None, range(8), [0, 8]], ids=["all", "a node", "two nodes"])
def test_an_estimate_is_what_the_clock_charges(ranks: list[int] | None) -> None:
    group = dist.group.WORLD if ranks is None else dist.new_group(list(ranks))
    data = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    before = charged_seconds()
    with time_estimator(group) as estimate:
        dist.all_reduce(data, group=group)
    assert charged_seconds() == before
    dist.all_reduce(data, group=group)
    charged = charged_seconds() - before
    assert estimate.estimated_time == pytest.approx(charged * MICROSECONDS, rel=1e-5)


def test_a_message_to_a_rank_that_does_not_run() -> None:
    data = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    with time_estimator() as in_the_node:
        dist.send(data, 1)
    with time_estimator() as to_another:
        dist.send(data, 8)
    assert 0 < in_the_node.estimated_time < to_another.estimated_time
    with pytest.raises(dist.DistBackendError, match="a message between two of its 16 ranks"):
        dist.send(data, 1)


def test_the_known_values_stay() -> None:
    data = torch.full((2,), 3.0, device="cuda")
    with time_estimator():
        dist.all_reduce(data)
    assert data.tolist() == [3.0, 3.0]


def test_the_class_of_the_group_and_its_new_collective() -> None:
    backend: Any = dist.group.WORLD._get_backend(torch.device("cuda"))  # type: ignore[union-attr]
    newer = hasattr(backend, "_supports_time_estimate")  # from PyTorch 2.15 on
    assert type(backend).__name__ == ("ProcessGroupNCCL2" if newer else "ProcessGroupNCCL")
    if hasattr(dist, "gather_single"):
        whole = torch.empty(16 * 2, device="cuda")
        dist.gather_single(torch.full((2,), 5.0, device="cuda"), whole)
        assert whole.tolist() == [5.0] * 32
