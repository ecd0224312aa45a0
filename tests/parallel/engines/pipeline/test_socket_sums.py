"""Sums over ranks by sockets, with all ranks in this process."""

from __future__ import annotations

import socket
import time
from datetime import timedelta

import pytest
import torch

from anyrig.parallel.engines.pipeline.over_ranks.socket_sums import SocketSums
from anyrig.processes.group.direct_messages import DirectMessages

SOON = timedelta(seconds=5)


def make_ranks(count: int) -> list[SocketSums]:
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(count)]
    for one in range(count):
        for other in range(one + 1, count):
            sockets[one][other], sockets[other][one] = socket.socketpair()
    messages = [DirectMessages(rank, own, 30.0) for rank, own in enumerate(sockets)]
    return [SocketSums(count, each) for each in messages]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3)])
def test_every_rank_gets_the_sum(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [(1e3 * torch.randn(shape, generator=generator)).to(dtype) for _ in range(3)]
    expected = torch.stack(tensors).sum(0)
    ends = [each.begin(tensor) for each, tensor in zip(make_ranks(3), tensors, strict=True)]
    for finish in ends:
        finish(SOON)
    for tensor in tensors:
        assert tensor.shape == shape
        assert torch.equal(tensor, expected)


def test_tensors_of_any_strides_are_added() -> None:
    tensors = [torch.arange(6.0).view(2, 3).T + rank for rank in range(2)]
    expected = tensors[0] + tensors[1]
    ends = [each.begin(tensor) for each, tensor in zip(make_ranks(2), tensors, strict=True)]
    for finish in ends:
        finish(SOON)
    assert all(torch.equal(tensor, expected) for tensor in tensors)


def test_sums_end_in_any_order_and_give_what_the_tensors_held_when_they_began() -> None:
    tensors = [[torch.tensor(10.0**number * (rank + 1)) for number in range(3)] for rank in (0, 1)]
    ends = [
        [each.begin(tensor) for tensor in own]
        for each, own in zip(make_ranks(2), tensors, strict=True)
    ]
    for own in tensors:
        own[1].fill_(-1.0)
    for finishes in ends:
        for number in (2, 0, 1):
            finishes[number](SOON)
    assert [[float(each) for each in own] for own in tensors] == [[3.0, 30.0, 300.0]] * 2


def test_a_wait_ends_with_its_limit_or_with_the_other_rank() -> None:
    zero, one = make_ranks(2)
    tensor = torch.tensor(1.0)
    finish = zero.begin(tensor)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="Timed out waiting for rank 1"):
        finish(timedelta(seconds=0.1))
    one.close()
    with pytest.raises(RuntimeError, match=r"rank 1"):
        finish(timedelta(seconds=30))
    assert time.monotonic() - started < 10
    assert float(tensor) == 1.0


def test_every_other_rank_notices_that_a_rank_has_ended() -> None:
    zero, one, two = make_ranks(3)
    finishes = [each.begin(torch.tensor(1.0)) for each in (zero, two)]
    one.close()
    started = time.monotonic()
    for finish in finishes:
        with pytest.raises(RuntimeError, match=r"Connection (closed|reset) by peer.*rank 1"):
            finish(timedelta(seconds=20))
    assert time.monotonic() - started < 10
