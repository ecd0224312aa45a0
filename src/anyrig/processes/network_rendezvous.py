"""torchrun's rendezvous of several machines, with a new store for the ranks of each attempt.

PyTorch's own handler keeps the store of the first attempt, up to 2.13 at least: a rank that is
started again may read where another one listened before, and fails when it connects there
(https://github.com/pytorch/pytorch/issues/135712 is closed, and attempts still share it;
`tests/processes/test_torch_faults.py` fails when it is). It also numbers the nodes by
their addresses, so those that want a number of their own exchange it here (`node_numbers`).
"""

from __future__ import annotations

import socket
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

# Who is lost makes room for the next attempt as soon as the others know of it.
_KEEP_ALIVE_SECONDS = 2


class NetworkRendezvous(DynamicRendezvousHandler):
    """Meets the other machines, and numbers them."""

    _address: str
    _node_rank: int | None
    _ranks_store: Any = None
    _all_know = False  # that the meeting is over

    @classmethod
    def at_endpoint(cls, options: RunOptions) -> NetworkRendezvous:
        """Return the meeting of `options`, of which this machine keeps the store if it is its own.

        Raises:
            Exception: there can be none, for a reason of the network or of PyTorch.
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
            # torchrun asks the machine's name, which may lead to the loopback only.
            is_host=str(hosts_store),
        )
        try:
            backend, store = create_backend(parameters)
        except RendezvousConnectionError:
            if not hosts_store:
                raise
            # Another part of the job came first, with other devices of this machine.
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
        # Private: PyTorch takes these for the store of the ranks, and so neither opens one on every
        # interface nor waits for another node's. The public way is a variable in this process's
        # environment, which all its threads and children would see.
        none: Any = RendezvousStoreInfo("", 0)
        self._bootstrap_store_info = self._shared_tcp_store_server = none
        self._address = options.local_address or socket.gethostname()
        self._node_rank = options.node_rank
        return self

    @property
    def use_agent_store(self) -> bool:
        """The ranks meet in the store of this object."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the others; return this node's rank, the number of nodes and a new store."""
        met = super().next_rendezvous()
        # PyTorch has used the same keys.
        store = dist.PrefixStore("anyrig/", met.store)  # type: ignore[attr-defined]
        try:
            rank = agree_on_number(store, met.rank, met.world_size, self._node_rank)
        except LaunchError:
            self._all_know = True
            raise
        # The last attempt's ends here, if this node had it.
        self._ranks_store = open_store(self._address) if rank == 0 else None
        port = None if self._ranks_store is None else self._ranks_store.port
        place = RendezvousStoreInfo.build(rank, store, self._address, port)
        return RendezvousInfo(met.store, rank, met.world_size, place)

    def shutdown(self) -> bool:
        """Close the meeting; return whether the others could be told."""
        return self._all_know or super().shutdown()
