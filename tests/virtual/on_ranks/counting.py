"""How many messages a collective takes, and how many threads."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMES = 20
SEGMENTS_WITH_DATA = 156  # tcpi_data_segs_out, from linux/tcp.h


def segments_sent() -> int:
    """Return how many TCP segments with data this process has sent over its open sockets."""
    sent = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                facts = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                sent += struct.unpack_from("I", facts, SEGMENTS_WITH_DATA)[0]
        except OSError:
            pass  # not a TCP socket
    return sent


def count_threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def messages_of(world: Any, collective: Callable[[], object]) -> float:
    """Return how many messages all ranks together send for one `collective`."""
    collective()
    before = segments_sent()
    for _ in range(TIMES):
        collective()
    sent = torch.tensor(segments_sent() - before, dtype=torch.int64, device="cuda")
    dist.all_reduce(sent)
    return sent.item() / TIMES


def case_agreeing_takes_two_messages_a_rank(world: Any) -> None:
    small = torch.ones(100, dtype=torch.float64, device="cuda")
    device = [world.rank]
    others = world.size - 1
    # Not exactly 2: other messages of the process count as well.
    assert others <= messages_of(world, lambda: dist.barrier(device_ids=device)) < 2.5 * others
    assert others <= messages_of(world, lambda: dist.all_reduce(small)) < 2.5 * others
    # A broadcast also sends the data, with an acknowledgement of gloo.
    assert messages_of(world, lambda: dist.broadcast(small, 1)) < 5.5 * others


def case_threads_end_when_they_have_nothing_to_do(world: Any) -> None:
    own = torch.full((8,), float(world.rank), device="cuda")
    received = [torch.empty(8, device="cuda") for _ in range(world.size)]
    peers = [rank for rank in range(world.size) if rank != world.rank]
    dist.barrier(device_ids=[world.rank])
    before = count_threads()
    exchanged = [dist.P2POp(dist.isend, own, peer) for peer in peers]
    exchanged += [dist.P2POp(dist.irecv, received[peer], peer) for peer in peers]
    for _ in range(2):  # the second time after the threads have ended
        for work in dist.batch_isend_irecv(exchanged):
            work.wait()
        assert [received[peer][0].item() for peer in peers] == peers
        end = time.monotonic() + 30
        while count_threads() > before and time.monotonic() < end:
            time.sleep(0.05)
        assert count_threads() <= before
