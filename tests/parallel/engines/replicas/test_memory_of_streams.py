"""Memory of replicas and gradients that the program frees while a stream still uses it.

Each test has one stream of one device sleep, so that the work queued behind it is not done when the
memory is freed. The allocator keeps it (``active_pending_free``) only if `record_stream` named that
stream.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trained_models import first_devices

import anyrig
from anyrig.parallel.engines.replicas.broadcast import side_streams
from pending_memory import hold_up, let_all_end, pending_blocks

pytestmark = pytest.mark.gpus(3)

LEAD, MIDDLE, LAST = (torch.device("cuda", index) for index in range(3))
# A bucket has one tensor; no other block has as many bytes as its copies and gradients.
WIDTH = 1000
BYTES = 4 * WIDTH * WIDTH


class Scaled(nn.Module):
    """Has one parameter, whose gradient comes from the last kernel of the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDTH, WIDTH), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    gc.collect()
    let_all_end(LEAD, MIDDLE, LAST)
    yield
    gc.collect()
    let_all_end(LEAD, MIDDLE, LAST)


def spread(count: int) -> tuple[Any, Tensor]:
    """Return a model that has replicas and no gradients, and a batch for it."""
    model = anyrig.spread(Scaled().to(LEAD), first_devices(count))
    x = torch.ones(6, WIDTH, device=LEAD)
    step(model, x)
    return model, x


def step(model: Any, x: Tensor) -> None:
    model.zero_grad()
    model(x).sum().backward()
    let_all_end(LEAD, MIDDLE, LAST)


def current(device: torch.device) -> torch.Stream:
    return torch.accelerator.current_stream(device)


def test_a_replica_is_kept_until_its_device_has_read_it() -> None:
    model, _ = spread(2)
    hold_up(current(MIDDLE))
    del model
    gc.collect()
    assert BYTES in pending_blocks(MIDDLE)


def test_a_replica_is_kept_until_it_has_been_passed_on() -> None:
    model, _ = spread(3)
    hold_up(side_streams(MIDDLE).leaving)
    del model
    gc.collect()
    assert BYTES in pending_blocks(MIDDLE)


def test_the_sum_of_gradients_is_kept_until_the_lead_has_read_it() -> None:
    model, x = spread(2)
    model.zero_grad()
    loss = model(x).sum()
    hold_up(current(LEAD))
    loss.backward()
    assert BYTES in pending_blocks(LEAD)


def test_gradients_are_kept_until_they_have_left() -> None:
    model, x = spread(2)
    model.zero_grad()
    hold_up(side_streams(MIDDLE).leaving)
    model(x).sum().backward()
    assert BYTES in pending_blocks(MIDDLE)


def test_gradients_are_kept_until_those_of_the_next_device_are_added() -> None:
    model, x = spread(3)
    model.zero_grad()
    hold_up(side_streams(MIDDLE).arriving)
    model(x).sum().backward()
    # The device's own gradients, and their sum with those that arrive.
    assert pending_blocks(MIDDLE).count(BYTES) == 2


def test_a_backward_pass_waits_for_the_step_before() -> None:
    # Else the gradients of each step that the host is ahead would have memory of their own.
    model, x = spread(2)
    hold_up(current(LEAD))
    last_step = current(LEAD).record_event()
    model(x).sum().backward()
    assert last_step.query()


def test_the_gradients_of_each_step_use_the_memory_of_the_last() -> None:
    model, x = spread(2)
    reserved = []
    for _ in range(6):
        model.zero_grad()
        hold_up(current(LEAD))
        hold_up(side_streams(MIDDLE).leaving)
        model(x).sum().backward()
        reserved.append([torch.cuda.memory_reserved(each) for each in (LEAD, MIDDLE)])
    assert reserved[-1] == reserved[1]
