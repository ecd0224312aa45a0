"""Memory that a copy of one stream reads or writes, and that the program frees before it is done.

Each test has a stream sleep, so that what was queued behind is not done when the program frees the
tensor. The allocator keeps the memory (``active_pending_free``) only if `record_stream` named that
stream.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from anyrig.transfer import copy_to_host, prefetch
from anyrig.transfer.beside import copy_beside
from anyrig.transfer.streams import copy_stream
from pending_memory import hold_up, let_all_end, pending_blocks

pytestmark = pytest.mark.gpus(2)

SIZE = 3 * 2**20 + 512  # of no other block
HERE, THERE = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    let_all_end(HERE, THERE)
    yield
    let_all_end(HERE, THERE)


def test_what_goes_to_another_device_is_kept_until_it_has_gone() -> None:
    source = torch.ones(SIZE, dtype=torch.uint8, device=HERE)
    hold_up(copy_stream(HERE, "to peer"))
    copied = copy_beside(source, THERE)
    del source
    assert pending_blocks(HERE) == [SIZE]
    assert copied.device == THERE


def test_what_came_from_the_host_is_kept_until_it_is_read() -> None:
    copied = copy_beside(torch.ones(SIZE, dtype=torch.uint8), THERE)
    hold_up(torch.accelerator.current_stream(THERE))
    del copied
    assert pending_blocks(THERE) == [SIZE]


def test_a_batch_that_was_fetched_ahead_is_kept_until_it_is_read() -> None:
    batches = iter(prefetch([torch.ones(SIZE, dtype=torch.uint8)], THERE))
    batch = next(batches)
    hold_up(torch.accelerator.current_stream(THERE))
    del batch, batches
    assert pending_blocks(THERE) == [SIZE]


def test_the_clone_that_goes_to_the_host_is_kept_until_it_has_gone() -> None:
    source = torch.ones(SIZE, dtype=torch.uint8, device=THERE)
    hold_up(copy_stream(THERE, "to host"))
    copy = copy_to_host(source, beside=True)
    assert pending_blocks(THERE) == [SIZE]
    assert bool(copy.value.all())
