"""The rendezvous of a single node, which other nodes cannot reach.

torchrun's ``--standalone`` listens on every interface. This store listens on 127.0.0.1 only; see
`docs/security.md`.
"""

from __future__ import annotations

import os
import socket
import sys
import uuid

import torch.distributed as dist
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

ADDRESS = "127.0.0.1"


class LoopbackRendezvous(StaticTCPRendezvous):
    """The rendezvous of one node, with a new store for the ranks of each attempt."""

    def __init__(self, port: int = 0) -> None:
        """Let the first store listen on `port` if the port is free; 0 is any free port."""
        super().__init__(ADDRESS, port, rank=0, world_size=1, run_id=uuid.uuid4().hex, timeout=0)

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a new store, this node's rank and the number of nodes."""
        # This process still holds the store of the previous attempt, so each store needs a port.
        port, self.master_port = self.master_port, 0
        try:
            store = open_store(ADDRESS, port)
        except OSError as error:
            store = open_store(ADDRESS)
            sys.stderr.write(
                f"anyrig: port {port} of --master-port or --rdzv-endpoint is not free "
                f"({os.strerror(error.errno or 0)}), so MASTER_PORT is {store.port}; without these "
                "flags, any free port is taken\n"
            )
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(ADDRESS, store.port))


def open_store(address: str, port: int = 0) -> dist.TCPStore:  # type: ignore[name-defined]
    """Return a new store that listens on `port` (0 for any) of `address` only.

    Each attempt needs a new store: an old store holds addresses of ranks that have ended.

    Raises:
        OSError: the port is in use.
    """
    # A socket that PyTorch opens listens on every address.
    with socket.create_server((address, port)) as listening:
        port = listening.getsockname()[1]
        return dist.TCPStore(  # type: ignore[attr-defined]
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
