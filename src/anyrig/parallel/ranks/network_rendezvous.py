"""torchrun's rendezvous of several machines, with a new store for the ranks of each attempt.

PyTorch's own handler keeps the store of the first attempt: a rank that is started again may read
where another one listened before, and fails when it connects there. It also numbers the nodes by
their addresses, so those that want a number of their own exchange it here (`node_numbers`).
"""

from __future__ import annotations

import socket
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from ...errors import LaunchError
from .attempt_store import open_store
from .node_numbers import agree_on_number


class NetworkRendezvous(RendezvousHandler):
    """Meets the other machines through another handler, and adds the store."""

    def __init__(
        self, handler: RendezvousHandler, address: str | None, node_rank: int | None = None
    ) -> None:
        """Make one.

        Args:
            handler: it finds the other machines.
            address: by which the other machines reach this one.
            node_rank: the number that this node wants; None for any.
        """
        self._handler = handler
        self._node_rank = node_rank
        self._all_know = False  # that the meeting is over
        # Private: the handler takes these for the store of the ranks, and so neither opens one on
        # every interface nor waits for another node's. The public way is a variable in this
        # process's environment, which all its threads and children would see.
        none = RendezvousStoreInfo("", 0)
        handler._bootstrap_store_info = none  # type: ignore[attr-defined]
        handler._shared_tcp_store_server = none  # type: ignore[attr-defined]
        self._address = address or socket.gethostname()
        self._store: Any = None

    @property
    def use_agent_store(self) -> bool:
        """The ranks meet in the store of this object."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the others; return this node's rank, the number of nodes and a new store."""
        met = self._handler.next_rendezvous()
        # The handler has used the same keys.
        store = dist.PrefixStore("anyrig/", met.store)  # type: ignore[attr-defined]
        try:
            rank = agree_on_number(store, met.rank, met.world_size, self._node_rank)
        except LaunchError:
            self._all_know = True
            raise
        # The last attempt's ends here, if this node had it.
        self._store = open_store(self._address) if rank == 0 else None
        place = RendezvousStoreInfo.build(
            rank,
            store,
            self._address,
            None if self._store is None else self._store.port,
        )
        return RendezvousInfo(met.store, rank, met.world_size, place)

    def get_backend(self) -> str:
        """Return the handler's name in torchrun's logs."""
        return self._handler.get_backend()

    def is_closed(self) -> bool:
        """Return whether no node may join any more."""
        return self._handler.is_closed()

    def set_closed(self) -> None:
        """Let no other node join."""
        self._handler.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait to join."""
        return self._handler.num_nodes_waiting()

    def get_run_id(self) -> str:
        """Return what tells this run from others."""
        return self._handler.get_run_id()

    def shutdown(self) -> bool:
        """Close the meeting; return whether the others could be told."""
        return self._all_know or self._handler.shutdown()
