"""Sockets between all ranks of one node, over the loopback."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import time
from typing import Any

import torch.distributed as dist

from .board import board_of
from .membership import Group

_LOOPBACK = "127.0.0.1"
_CONNECT_SECONDS = 10.0
# Each rank has a socket for every other rank.
_MOST_RANKS = 16
_TOKEN_BYTES = 16


def connect_ranks(group: Group, name: str) -> dict[int, socket.socket] | None:
    """Return a socket for each other rank, if all ranks compute on the CPU of one node.

    Every rank must call this function at the same point. If two ranks cannot connect, every rank
    gets None.

    Args:
        group: the group of all ranks.
        name: the kind of exchange on the group's board.

    Raises:
        RankWaitError: another rank did not come in time, or has ended.
    """
    backends = {part.partition(":")[2] for part in dist.get_backend_config().split(",")}
    if group.world_size > _MOST_RANKS or backends != {"gloo"}:
        return None
    board = board_of(group)
    if group.device.type != "cpu" or board.ranks_here() != range(group.world_size):
        # The others do not wait for this rank, nor this rank for them.
        board.give(name, json.dumps([0, ""]).encode(), "spread()")
        return None
    limit_seconds = group_limit_seconds()

    def exchange(own: Any) -> list[Any]:
        texts = board.exchange(name, json.dumps(own).encode(), limit_seconds, "spread()")
        return list(map(json.loads, texts))

    sockets: dict[int, socket.socket] = {}
    with socket.create_server((_LOOPBACK, 0), backlog=4 * _MOST_RANKS) as listening:
        others = exchange([listening.getsockname()[1], secrets.token_hex(_TOKEN_BYTES)])
        if not all(port for port, _ in others):
            return None
        with contextlib.suppress(OSError):
            connect(sockets, group.rank, others, listening)
    for each in sockets.values():
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if all(exchange(len(sockets) == group.world_size - 1)):
        return sockets
    for each in sockets.values():
        each.close()
    return None


def group_limit_seconds() -> float:
    """Return the timeout of the process group."""
    world: Any = dist.group.WORLD
    seconds: float = world.get_group_store().timeout.total_seconds()
    return seconds


def connect(
    sockets: dict[int, socket.socket], rank: int, others: list[Any], listening: socket.socket
) -> None:
    """Connect to the ranks below, and accept the ranks above; raise OSError if one is late."""
    for other, (port, token) in enumerate(others[:rank]):
        sockets[other] = socket.create_connection((_LOOPBACK, port), _CONNECT_SECONDS)
        sockets[other].sendall(bytes.fromhex(token) + bytes([rank]))
    ends = time.monotonic() + _CONNECT_SECONDS
    while len(sockets) < len(others) - 1:
        listening.settimeout(max(1e-4, ends - time.monotonic()))
        given = listening.accept()[0]
        given.settimeout(1.0)
        try:
            said = given.recv(_TOKEN_BYTES + 1, socket.MSG_WAITALL)
        except OSError:
            said = b""
        # Any program on this node can connect, but only ranks know the token.
        if hmac.compare_digest(said[:-1], bytes.fromhex(others[rank][1])):
            sockets[said[-1]] = given
        else:
            given.close()
