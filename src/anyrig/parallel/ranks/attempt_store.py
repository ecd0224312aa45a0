"""The store in which the ranks of one attempt meet.

Each attempt has a new one: in the last attempt's store its ranks would find addresses at which
nobody listens any more.
"""

from __future__ import annotations

import socket

import torch.distributed as dist


def open_store(address: str, port: int = 0) -> dist.TCPStore:  # type: ignore[name-defined]
    """Return a new store that listens on `port` (0 for any) of `address` only.

    Raises:
        OSError: the port is taken.
    """
    # The store takes a socket that listens already: its own would be bound to every address.
    with socket.create_server((address, port)) as listening:
        port = listening.getsockname()[1]
        return dist.TCPStore(  # type: ignore[attr-defined]
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
