"""The number of each node: its GROUP_RANK, from ``--node-rank``.

A node without the flag gets the next free number. If the numbers have gaps, because fewer nodes
joined than expected, the nodes are renumbered in the same order.
"""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from ..errors import LaunchError

# How long a node waits after a conflict until the other nodes have read the numbers, too.
_READING = timedelta(seconds=5)


def agree_on_number(store: Any, position: int, nodes: int, wanted: int | None) -> int:
    """Return the number of the node at `position`. All `nodes` nodes must call this function.

    Raises:
        LaunchError: two nodes want the same number; raised on every node.
    """
    store.set(f"wanted/{position}", json.dumps([wanted, socket.gethostname()]))
    requests = [json.loads(store.get(f"wanted/{other}")) for other in range(nodes)]
    try:
        return number_nodes([tuple(request) for request in requests])[position]
    except LaunchError:
        store.set(f"read/{position}", "")
        with suppress(RuntimeError):
            store.wait([f"read/{other}" for other in range(nodes)], _READING)
        raise


def number_nodes(requests: Sequence[tuple[int | None, str]]) -> list[int]:
    """Return the number of each node, given the (wanted number or None, host name) of each node.

    Raises:
        LaunchError: two nodes want the same number.
    """
    hosts: dict[int, str] = {}
    for wanted, host in requests:
        if wanted is None:
            continue
        if wanted in hosts:
            raise LaunchError(
                f"--node-rank is {wanted} on two nodes, {hosts[wanted]} and {host}; give each node "
                "a different number, or leave the flag out on all nodes"
            )
        hosts[wanted] = host
    free = (number for number in itertools.count() if number not in hosts)
    numbers = [next(free) if wanted is None else wanted for wanted, _ in requests]
    return [sorted(numbers).index(number) for number in numbers]
