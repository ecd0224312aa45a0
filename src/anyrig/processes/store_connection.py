"""Bounds how long a call of the store may wait for a machine that no longer answers.

A fault of PyTorch, up to 2.13 at least: its client of the store waits for the answer without end,
whatever its timeout; when the network is cut, the kernel gives the connection up after a quarter of
an hour. The option that bounds this belongs to the socket, which PyTorch does not show. No issue
names it; `tests/processes/test_torch_faults.py` fails when it is mended.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

import psutil

# From the sending of a segment, or of a probe of an idle connection, to the error.
_PROBE_SECONDS = 2


def bound_answers(port: int, seconds: float) -> None:
    """Have the connections of this process to any machine's `port` fail after `seconds` of silence.

    Does nothing where the system has no such option (it is Linux's).
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    options = {
        socket.TCP_USER_TIMEOUT: round(1000 * seconds),
        socket.TCP_KEEPIDLE: _PROBE_SECONDS,
        socket.TCP_KEEPINTVL: _PROBE_SECONDS,
    }
    for each in psutil.Process().net_connections("tcp"):
        if not each.raddr or each.raddr.port != port:
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in options.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


def await_listener(host: str, port: int, seconds: float) -> None:
    """Wait until something listens there; the store's own client gives up after a minute.

    Raises:
        OSError: nothing did within `seconds`; the last answer.
    """
    ends = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.5)
        else:
            return
