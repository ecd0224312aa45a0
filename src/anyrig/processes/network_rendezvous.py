"""torchrun's rendezvous of several nodes, with a new store for the ranks of each attempt.

PyTorch's own handler keeps the store of the first attempt (see `torch_faults`): a restarted rank
may read the address of a rank that has ended, and fail to connect. PyTorch numbers the nodes by
their addresses; this rendezvous exchanges the numbers of ``--node-rank`` (`node_numbers`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

from ..errors import LaunchError
from .loopback import open_store
from .node_numbers import agree_on_number
from .node_watch import SILENCE_SECONDS
from .options import RunOptions
from .route import await_listener, is_host_of
from .torch_faults import bound_answers

# The rendezvous drops a lost node about when `node_watch` notices the loss.
_KEEP_ALIVE_SECONDS = 2


class NetworkRendezvous(DynamicRendezvousHandler):
    """A rendezvous of several nodes that respects ``--node-rank``."""

    _address: str
    _node_rank: int | None
    _ranks_store: Any = None
    _failed_on_all = False  # whether the rendezvous has failed, and every node knows
    _others_are_done: Callable[[], bool] | None = None

    @classmethod
    def at_endpoint(cls, options: RunOptions) -> NetworkRendezvous:
        """Return the rendezvous at `options.rdzv_endpoint`; host its store if that is this node.

        Raises:
            Exception: the endpoint cannot be reached, or PyTorch fails.
        """
        assert options.rdzv_endpoint is not None
        host, _, port = options.rdzv_endpoint.rpartition(":")
        hosts_store = is_host_of(host)
        if not hosts_store:
            await_listener(host, int(port), options.rdzv_timeout_seconds)
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=options.rdzv_endpoint,
            run_id=options.rdzv_id,
            min_nodes=options.node_counts[0],
            max_nodes=options.node_counts[1],
            # torchrun compares host names, and a node's own name may resolve only to the loopback.
            is_host=str(hosts_store),
        )
        try:
            backend, store = create_backend(parameters)
        except RendezvousConnectionError:
            if not hosts_store:
                raise
            # Another launcher of this job on this node, with other devices, hosts the store.
            parameters.config["is_host"] = "False"
            backend, store = create_backend(parameters)
        bound_answers(int(port), SILENCE_SECONDS)
        self: NetworkRendezvous = cls.from_backend(
            options.rdzv_id,
            store,
            backend,
            *options.node_counts,
            local_addr=options.local_address,
            timeout=RendezvousTimeout(join=timedelta(seconds=options.rdzv_timeout_seconds)),
            keep_alive_interval=_KEEP_ALIVE_SECONDS,
            keep_alive_max_attempt=int(SILENCE_SECONDS / _KEEP_ALIVE_SECONDS),
        )
        # Private: with these set, PyTorch neither opens a store for the ranks on every interface
        # nor waits for another node's store. The public alternative is an environment variable,
        # which all threads and child processes would see.
        none: Any = RendezvousStoreInfo("", 0)
        self._bootstrap_store_info = self._shared_tcp_store_server = none
        self._address = options.local_address or socket.gethostname()
        self._node_rank = options.node_rank
        return self

    @property
    def use_agent_store(self) -> bool:
        """True: the ranks use the store that this object provides."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the other nodes; return this node's number, the node count and a new store."""
        met = super().next_rendezvous()
        # PyTorch uses the same keys without the prefix.
        store = dist.PrefixStore("anyrig/", met.store)  # type: ignore[attr-defined]
        try:
            rank = agree_on_number(store, met.rank, met.world_size, self._node_rank)
        except LaunchError:
            self._failed_on_all = True
            raise
        # This assignment closes the previous attempt's store if this node hosted it.
        self._ranks_store = open_store(self._address) if rank == 0 else None
        port = None if self._ranks_store is None else self._ranks_store.port
        place = RendezvousStoreInfo.build(rank, store, self._address, port)
        return RendezvousInfo(met.store, rank, met.world_size, place)

    def end_with(self, others_are_done: Callable[[], bool]) -> None:
        """Expect no further node once `others_are_done` returns True: all ranks have succeeded."""
        self._others_are_done = others_are_done

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait to join.

        Raises:
            RendezvousConnectionError: the node that hosts the rendezvous is lost.
        """
        try:
            return super().num_nodes_waiting()
        except RendezvousConnectionError:
            # That node may have left, with the store, just after all ranks succeeded.
            if self._others_are_done is not None and self._others_are_done():
                return 0
            raise

    def shutdown(self) -> bool:
        """Close the rendezvous; return whether the other nodes know."""
        return self._failed_on_all or super().shutdown()
