"""The sockets between rank 0 and the other ranks of a group."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch.distributed as dist

from anyrig.virtual.roll_call_sockets import connect_to_rank_0, own_address

LOOPBACK = "127.0.0.1"


def is_turned_away(address: tuple[str, int], greeting: bytes) -> bool:
    with socket.create_connection(address, timeout=30) as stranger:
        try:
            stranger.sendall(greeting)
            stranger.shutdown(socket.SHUT_WR)
            return stranger.recv(1) == b""
        except ConnectionError:
            return True
        except OSError as error:
            return error.errno == errno.ENOTCONN  # reset before `shutdown`


def test_ranks_connect_and_strangers_are_turned_away() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as threads:
        leader = threads.submit(connect_to_rank_0, store, 0, 3, LOOPBACK, 30.0)
        address, port, _ = json.loads(store.get("roll_call"))
        for greeting in (b"", b"too short", b"wrong token, and of its length ", bytes(20)):
            assert is_turned_away((address, port), greeting)
        others = [
            threads.submit(connect_to_rank_0, store, rank, 3, LOOPBACK, 30.0) for rank in (2, 1)
        ]
        ends = leader.result(30)
        of_rank = {2: others[0].result(30)[0], 1: others[1].result(30)[0]}
    for rank, descriptor in of_rank.items():
        os.write(descriptor, bytes([rank]))
    assert [os.read(end, 1) for end in ends] == [bytes([1]), bytes([2])]
    for descriptor in (*ends, *of_rank.values()):
        assert os.get_blocking(descriptor)
        os.close(descriptor)


def test_a_rank_that_does_not_come_is_an_error() -> None:
    words = (
        r"rank 0 could not connect to all other ranks of a group of 3 ranks within 0 s: no "
        r"connection from these ranks: 1, 2; see the output"
    )
    with pytest.raises(dist.DistBackendError, match=words):
        connect_to_rank_0(dist.HashStore(), 0, 3, LOOPBACK, 0.1)


def test_strangers_do_not_extend_the_wait_for_a_rank() -> None:
    store, limit_seconds = dist.HashStore(), 0.5
    with ThreadPoolExecutor(1) as threads:
        leader = threads.submit(connect_to_rank_0, store, 0, 2, LOOPBACK, limit_seconds)
        address, port, _ = json.loads(store.get("roll_call"))
        begun = time.monotonic()
        with suppress(ConnectionError):
            while not leader.done() and time.monotonic() - begun < 30:
                is_turned_away((address, port), b"x")
        with pytest.raises(dist.DistBackendError, match="no connection from these ranks: 1"):
            leader.result(30)
    assert time.monotonic() - begun < 10


def test_a_group_of_one_rank_needs_no_socket() -> None:
    assert connect_to_rank_0(dist.HashStore(), 0, 1, LOOPBACK, 0.1) == []


def test_the_address_of_an_interface() -> None:
    assert own_address("lo") in (LOOPBACK, "::1")
    assert own_address("no such interface") == own_address()


def test_forked_processes_do_not_keep_the_sockets() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as threads:
        leader = threads.submit(connect_to_rank_0, store, 0, 2, LOOPBACK, 30.0)
        (other,) = threads.submit(connect_to_rank_0, store, 1, 2, LOOPBACK, 30.0).result(30)
        (end,) = leader.result(30)
    asked, told = os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(told)  # or the read would never end
        os.read(asked, 1)  # lives until the test ends
        os._exit(0)
    try:
        with socket.socket(fileno=end) as of_leader:
            of_leader.settimeout(10)
            os.close(other)  # as if rank 1 died while its worker lives
            assert of_leader.recv(1) == b""
    finally:
        os.close(told)
        os.close(asked)
        os.waitpid(worker, 0)
