"""The messages by which ranks agree on a collective, and a rank that breaks their format."""

from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from anyrig.virtual import load_extension
from anyrig.virtual.process_group import connect

pytestmark = pytest.mark.virtual_only("the messages are those of virtual GPUs")

LIMIT = timedelta(seconds=30)
ANNOUNCEMENT, FIRST_ROUND = 0, 1


def announce_too_little(store: dist.Store) -> bytes:
    """Join a group as rank 1, send an announcement of three bytes, and return the answer."""
    _gloo, (descriptor,) = connect(store, 1, 2, LIMIT)
    with socket.socket(fileno=descriptor) as rank_0:
        rank_0.sendall(struct.pack("=qqq", ANNOUNCEMENT, FIRST_ROUND, 3) + b"abc")
        rank_0.settimeout(LIMIT.total_seconds())
        return rank_0.recv(1)


def test_a_message_that_cannot_be_read_closes_the_group() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(announce_too_little, store)
        group = load_extension().ProcessGroupNCCL(store, 0, 2, LIMIT)
        with pytest.raises(RuntimeError, match="another rank runs a different version of anyrig"):
            group.allreduce(torch.ones(2, device="cuda")).wait()
        assert other.result(60) == b""  # the connection ended at once, not when time was up
        with pytest.raises(RuntimeError, match=r"group (is|was) closed"):
            group.allreduce(torch.ones(2, device="cuda")).wait()
        group.abort()
