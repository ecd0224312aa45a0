"""The rendezvous of one machine: nothing to agree on, and nothing that another machine can reach.

torchrun's own ``--standalone`` lets the store listen on every network interface; here it listens on
127.0.0.1 only. See `docs/security.md`.
"""

from __future__ import annotations

import os
import sys
import uuid

from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from .attempt_store import open_store

ADDRESS = "127.0.0.1"


class LoopbackRendezvous(RendezvousHandler):
    """A rendezvous of one node, and the store that its ranks meet in."""

    def __init__(self, port: int = 0) -> None:
        """Make one whose first store listens on `port` if that is free; 0 is any free port."""
        self._run_id = uuid.uuid4().hex
        self._port = port

    def get_backend(self) -> str:
        """Return the name that torchrun's logs give it."""
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        """The ranks meet in the store of this object."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a new store, this node's rank and the number of nodes."""
        # Later ones listen elsewhere: this process still holds the store of the attempt before.
        port, self._port = self._port, 0
        try:
            store = open_store(ADDRESS, port)
        except OSError as error:
            store = open_store(ADDRESS)
            sys.stderr.write(
                f"anyrig: port {port} is not free ({os.strerror(error.errno or 0)}), so the ranks "
                f"meet at port {store.port}\n"
            )
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(ADDRESS, store.port))

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
