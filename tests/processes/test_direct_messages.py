"""Messages between ranks by sockets, with both ranks in this process."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch

from anyrig.processes.group import node_sockets
from anyrig.processes.group.direct_messages import (
    Arrival,
    DirectMessages,
    direct_messages_of,
)
from anyrig.processes.group.membership import Context, Group
from anyrig.processes.group.node_sockets import connect

SOON = timedelta(seconds=0.05)


def make_ranks(limit_seconds: float = 30.0) -> list[DirectMessages]:
    pair = make_pair()
    return [DirectMessages(rank, {1 - rank: pair[rank]}, limit_seconds) for rank in range(2)]


def make_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        first = socket.create_connection(listening.getsockname())
        return first, listening.accept()[0]


class Numbers:
    """A number for each rank, and room for theirs."""

    def __init__(self, number: int, ranks: int = 2) -> None:
        self.sent = (ctypes.c_int64 * ranks)(*range(number, number + ranks))
        self.received = (ctypes.c_int64 * ranks)()


def send(ranks: DirectMessages, number: int) -> tuple[Arrival, Any]:
    messages = Numbers(number, len(ranks._sockets) + 1)
    return ranks.alltoall(messages), messages.received


def test_messages_may_be_awaited_in_any_order_or_not_at_all() -> None:
    zero, one = make_ranks()
    own = [send(zero, number) for number in (10, 20, 30)]
    theirs = [send(one, number) for number in (60, 70, 80)]
    for messages in (own, theirs):
        messages[2][0].wait(SOON)
        messages[0][0].wait(SOON)
        assert all(arrival.is_completed() for arrival, _ in messages)
    assert [list(target) for _, target in own] == [[10, 60], [20, 70], [30, 80]]
    assert [list(target) for _, target in theirs] == [[11, 61], [21, 71], [31, 81]]


def test_each_of_three_ranks_gets_its_own_part() -> None:
    sockets: list[dict[int, socket.socket]] = [{}, {}, {}]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        sockets[one][other], sockets[other][one] = make_pair()
    ranks = [DirectMessages(rank, own, 30.0) for rank, own in enumerate(sockets)]
    sent = [send(one, number) for one, number in zip(ranks, (10, 20, 30), strict=True)]
    for rank, (arrival, received) in enumerate(sent):
        arrival.wait(SOON)
        assert list(received) == [10 + rank, 20 + rank, 30 + rank]


def test_a_message_may_arrive_in_pieces() -> None:
    first, second = make_pair()
    zero = DirectMessages(0, {1: first}, 30.0)
    with second:
        arrival, target = send(zero, 5)
        message = struct.pack("q", 7)
        second.sendall(message[:3])
        with pytest.raises(RuntimeError, match="Timed out waiting for rank 1"):
            arrival.wait(SOON)
        assert not arrival.is_completed()  # so the wait goes on
        second.sendall(message[3:])
        arrival.wait(SOON)
    assert list(target) == [5, 7]


def test_a_wait_ends_with_the_limit_of_the_group() -> None:
    zero, _one = make_ranks(limit_seconds=0.1)
    arrival, _ = send(zero, 1)
    started = time.monotonic()
    while not arrival.is_completed():
        with pytest.raises(RuntimeError, match="Timed out"):
            arrival.wait(SOON)
    assert 0.09 < time.monotonic() - started < 5


def test_a_rank_that_ends_is_noticed_after_its_last_message() -> None:
    zero, one = make_ranks()
    send(one, 3)
    del one
    first, second = send(zero, 1)[0], send(zero, 2)[0]
    first.wait(SOON)
    # `rank_end` knows by this text that the rank itself is not the cause.
    with pytest.raises(RuntimeError, match=r"Connection (closed|reset) by peer.*rank 1"):
        second.wait(timedelta(seconds=5))
    assert second.is_completed()


def test_a_stranger_is_not_taken_for_a_rank() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as own,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        others = [[each.getsockname()[1], f"{n:032x}"] for n, each in enumerate((own, other))]
        strangers = [socket.create_connection(own.getsockname()) for _ in range(3)]
        strangers[0].sendall(b"x" * 17)
        strangers[1].sendall(bytes(15) + b"\1\1")
        strangers[2].close()
        of_one: dict[int, socket.socket] = {}
        thread = threading.Thread(target=connect, args=(of_one, 1, others, other))
        thread.start()
        of_zero: dict[int, socket.socket] = {}
        connect(of_zero, 0, others, own)
        thread.join()
    of_one[0].sendall(b"me")
    assert of_zero.keys() == {1}
    assert of_zero[1].recv(2) == b"me"
    for each in (*strangers, *of_one.values(), *of_zero.values()):
        each.close()


def test_a_rank_that_does_not_connect_in_time_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_sockets, "_CONNECT_SECONDS", 0.1)
    sockets: dict[int, socket.socket] = {}
    with (
        socket.create_server(("127.0.0.1", 0)) as own,
        socket.create_connection(own.getsockname()) as stranger,
    ):
        stranger.sendall(b"x" * 17)
        others = [[own.getsockname()[1], f"{0:032x}"], [1, f"{1:032x}"]]
        with pytest.raises(TimeoutError):
            connect(sockets, 0, others, own)
    assert sockets == {}


def test_gloo_carries_messages_while_something_watches_collectives() -> None:
    context = Context(Group(0, 2, torch.device("cpu"), "gloo", ""), 0)
    context.direct = object()
    assert direct_messages_of(context) is context.direct
    library = torch.library.Library("c10d", "IMPL")
    try:
        library.impl("alltoall_base_", lambda *_: None, "Autograd")
        assert direct_messages_of(context) is None
    finally:
        library._destroy()
    assert direct_messages_of(context) is context.direct
