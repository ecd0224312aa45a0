"""Cut the connections between this rank and the others, as a broken link would.

::

    rank 3   ──── data ───▶ x          the kernel drops what arrives, acknowledgements included;
    rank 3   x ◀─── data ────          nobody notices until a time limit
    rank 3   ◀──── store ───▶          the launcher's store stays reachable
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from contextlib import suppress

import psutil

from ...errors import ReportError

# linux/filter.h: a program of one instruction, which keeps no byte of any packet.
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
_SO_ATTACH_FILTER = 26


def can_cut_links() -> bool:
    """Return whether this system has socket filters."""
    return sys.platform == "linux"


def cut_link() -> int:
    """Drop all that arrives at this process's TCP connections, except for the store's.

    Returns:
        the number of connections.

    Raises:
        ReportError: the system has no socket filters.
    """
    if not can_cut_links():
        raise ReportError(f"links cannot be cut on {sys.platform}, which has no socket filters")
    store = int(os.environ.get("MASTER_PORT", "0"))
    instructions = ctypes.create_string_buffer(_RETURN_NOTHING)
    program = struct.pack("HP", 1, ctypes.addressof(instructions))
    cut = 0
    for connection in psutil.Process().net_connections(kind="tcp"):
        if not connection.raddr or store in (connection.laddr.port, connection.raddr.port):
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as copy:
            copy.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
            cut += 1
    return cut
