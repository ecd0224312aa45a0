"""Senders that do not belong to a job: what they send, and how they connect."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import struct
from collections.abc import Iterator

CONNECTIONS = 1000
LINES_OF_EACH = 10

_AT_ONCE = 200  # a process may have 1024 open files, this one and the one that is attacked
_MESSAGES = [
    b"1",
    b"[" * 200_000,
    json.dumps({"token": "é"}).encode(),
    '{"token": "é"}'.encode(),
    b'{"token": "x", "node": 1}',
    b'{"token": ["x"], "node": {}}',
    b'{"event": "failing", "node": 1}',
    b'{"event": "over", "node": 1, "ends": [1]}',
    b'{"node": 99, "event": "trouble", "text": "on fire", "end": null}',
    b"null",
    b'"',
    b"",
    b"9" * 5000,
    b"1e999",
    b"\xff\xfe" * 50,
    b"\x00" * 100,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r",
    b"SSH-2.0-OpenSSH_9.6",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"0" * 32 + b" 00000001",
    "٣".encode() * 16 + " ٣٣٣٣".encode(),
    struct.pack("<Q", 2**62) + b"x" * 40,
    b"\x1b[31mred",
]


def messages(count: int) -> Iterator[bytes]:
    """Yield lines without their newline: those above, each cut short, and random bytes."""
    chance = random.Random(0)
    cut = [message[: chance.randrange(len(message) + 1)] for message in _MESSAGES]
    noise = [chance.randbytes(chance.randrange(200)) for _ in range(20)]
    every = [*_MESSAGES, *cut, *noise]
    short = [message for message in every if len(message) < 10_000]
    rounds = (every if turn % 10 == 0 else short for turn in itertools.count())
    in_turn = itertools.chain.from_iterable(rounds)
    yield from itertools.islice((each.replace(b"\n", b"") for each in in_turn), count)


def attack(address: tuple[str, int], connections: int = CONNECTIONS) -> None:
    """Connect and send 10 lines each time; some connections are slow, some reset.

    With 400 connections or more, every kind of line is sent.
    """
    lines = messages(connections * LINES_OF_EACH)
    for wave in range(0, connections, _AT_ONCE):
        with contextlib.ExitStack() as stack:
            opened = [_connect(address, stack) for _ in range(_AT_ONCE)]
            for number, connection in enumerate(opened, wave):
                sent = b"\n".join(itertools.islice(lines, LINES_OF_EACH))
                with contextlib.suppress(OSError):  # it was dropped, as it should be
                    connection.send(sent[:1] if number % 7 == 0 else sent + b"\n")
                if number % 5 == 0:  # a reset instead of an orderly end
                    reset = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                    connection.close()


def _connect(address: tuple[str, int], stack: contextlib.ExitStack) -> socket.socket:
    connection = stack.enter_context(socket.create_connection(address, 10))
    connection.setblocking(False)
    return connection
