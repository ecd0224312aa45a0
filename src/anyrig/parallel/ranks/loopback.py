"""The rendezvous of one machine: nothing to agree on, and nothing that another machine can reach.

torchrun's own ``--standalone`` lets the store listen on every network interface; here it listens on
127.0.0.1 only. See `docs/security.md`.
"""

from __future__ import annotations

import socket
import uuid

import torch.distributed as dist
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

ADDRESS = "127.0.0.1"


class LoopbackRendezvous(RendezvousHandler):
    """A rendezvous of one node, and the store that its ranks meet in."""

    def __init__(self) -> None:
        self._run_id = uuid.uuid4().hex

    def get_backend(self) -> str:
        """Return the name that torchrun's logs give it."""
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        """The ranks meet in the store of this object."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a new store, this node's rank and the number of nodes.

        A new one for each attempt: its ranks would find the addresses of the last one's in the old.
        """
        # The store takes a socket that listens already: its own would be bound to every address.
        with socket.create_server((ADDRESS, 0)) as listening:
            port = listening.getsockname()[1]
            store = dist.TCPStore(  # type: ignore[attr-defined]
                ADDRESS,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(ADDRESS, port))

    def is_closed(self) -> bool:
        """Return whether no node may join any more."""
        return False

    def set_closed(self) -> None:
        """Do nothing: nobody else joins."""

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait to join."""
        return 0

    def get_run_id(self) -> str:
        """Return what tells this run from others."""
        return self._run_id

    def shutdown(self) -> bool:
        """Do nothing, successfully: the store goes with this object."""
        return True
