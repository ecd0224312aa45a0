"""The sockets over which the ranks of a group agree on each collective, through rank 0.

::

    rank 0    listens, and writes its address and a token to the store
    rank n    connects, and sends the token and its number

`csrc/collectives/roll_call.h` explains what they are for. A rank's death closes its sockets, which
the other ranks notice. Processes that a rank forks, such as the workers of a DataLoader, must
therefore not keep the sockets open.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import psutil

_KEY = "roll_call"
_TOKEN_BYTES = 16
_NUMBER = struct.Struct("<I")

# How long a connected rank may take to say who it is.
_GREETING_SECONDS = 10.0


def connect_to_rank_0(
    store: Any, rank: int, size: int, host: str, limit_seconds: float
) -> list[int]:
    """Return the descriptors of connected sockets, which the caller must close.

    On rank 0 these are the sockets of ranks 1, 2, …; on other ranks, the socket of rank 0.

    Args:
        store: a store of the group's own.
        rank: the rank of this process in the group.
        size: the number of ranks of the group.
        host: the address of this host at which other ranks can reach it.
        limit_seconds: how long to wait for the other ranks.

    Raises:
        torch.distributed.DistBackendError: a rank is missing.
    """
    import torch.distributed as dist

    if size == 1:
        return []
    connect = _accept_all if rank == 0 else _connect
    try:
        descriptors = [_detach(one) for one in connect(store, rank, size, host, limit_seconds)]
        _close_in_forked_processes(descriptors)
        return descriptors
    except OSError as error:
        raise dist.DistBackendError(
            f"rank {rank} could not connect to {'all other ranks' if rank == 0 else 'rank 0'} of a "
            f"group of {size} ranks within {limit_seconds:.0f} s: {error}; see the output of the "
            "other ranks"
        ) from error


def own_address(interface: str = "") -> str:
    """Return the address of this host, on `interface` if it is given, for ranks of other hosts."""
    for address in psutil.net_if_addrs().get(interface, []):
        if address.family in (socket.AF_INET, socket.AF_INET6):
            return str(address.address)
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        return str(found[0][4][0])
    except OSError:  # the host's name has no address; gloo uses the loopback then, too
        return "127.0.0.1"


def _accept_all(
    store: Any, rank: int, size: int, host: str, limit_seconds: float
) -> list[socket.socket]:
    token = os.urandom(_TOKEN_BYTES)
    end = time.monotonic() + limit_seconds  # of the wait for all ranks together
    with ExitStack() as opened:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = opened.enter_context(socket.create_server((host, 0), family=family, backlog=size))
        store.set(_KEY, json.dumps([host, server.getsockname()[1], token.hex()]))
        by_rank: dict[int, socket.socket] = {}
        while missing := [number for number in range(1, size) if number not in by_rank]:
            try:
                server.settimeout(_seconds_until(end))
                other, _ = server.accept()
            except TimeoutError as error:
                numbers = ", ".join(map(str, missing))
                raise TimeoutError(f"no connection from these ranks: {numbers}") from error
            number = _read_greeting(other, token, end)
            if number in missing:
                by_rank[number] = opened.enter_context(other)
            else:
                other.close()  # a program that scans ports
        opened.pop_all()
        server.close()
        return [by_rank[number] for number in range(1, size)]


def _connect(
    store: Any, rank: int, size: int, host: str, limit_seconds: float
) -> list[socket.socket]:
    address, port, token = json.loads(store.get(_KEY))
    with ExitStack() as opened:
        connected = socket.create_connection((address, port), timeout=limit_seconds)
        opened.enter_context(connected)
        connected.sendall(bytes.fromhex(token) + _NUMBER.pack(rank))
        opened.pop_all()
    return [connected]


def _read_greeting(other: socket.socket, token: bytes, end: float) -> int | None:
    """Return the rank of a connected process, or None if it is not a rank of the group.

    The process must send its greeting before `end`, and within `_GREETING_SECONDS`.
    """
    end = min(end, time.monotonic() + _GREETING_SECONDS)
    greeting = b""
    length = len(token) + _NUMBER.size
    try:
        while len(greeting) < length:
            other.settimeout(_seconds_until(end))
            part = other.recv(length - len(greeting))
            if not part:
                return None
            greeting += part
    except OSError:
        return None
    matches = greeting.startswith(token)
    return int(_NUMBER.unpack(greeting[len(token) :])[0]) if matches else None


def _seconds_until(end: float) -> float:
    """Return the seconds until `end`, a time of `time.monotonic`.

    Raises:
        TimeoutError: `end` has passed.
    """
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _close_in_forked_processes(descriptors: Sequence[int]) -> None:
    files = [(each, os.fstat(each).st_ino) for each in descriptors]
    os.register_at_fork(after_in_child=partial(_replace_by_nothing, files))


def _replace_by_nothing(files: Sequence[tuple[int, int]]) -> None:
    """Close the (descriptor, inode) pairs that are still open, but keep their numbers in use.

    The group's object in C++ closes the numbers, and must not close another file.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, inode in files:
        with suppress(OSError):  # closed before the fork
            if os.fstat(descriptor).st_ino == inode:
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


def _detach(connected: socket.socket) -> int:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setblocking(True)
    return connected.detach()
