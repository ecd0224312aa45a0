"""The number of each node: GROUP_RANK, as ``--node-rank`` asks for it.

A node that asks for none gets the next free number. If fewer nodes came than were numbered, the
numbers close up, and keep their order.
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

# How long a node that leaves waits until the others have read why they must leave, too.
_READING = timedelta(seconds=5)


def agree_on_number(store: Any, position: int, nodes: int, wanted: int | None) -> int:
    """Return the number of the node at this `position` among `nodes`; each of them calls this.

    Raises:
        LaunchError: two nodes want the same number; raised on every node.
    """
    store.set(f"wanted/{position}", json.dumps([wanted, socket.gethostname()]))
    asked = [json.loads(store.get(f"wanted/{other}")) for other in range(nodes)]
    try:
        return number_nodes([tuple(each) for each in asked])[position]
    except LaunchError:
        store.set(f"read/{position}", "")
        with suppress(RuntimeError):
            store.wait([f"read/{other}" for other in range(nodes)], _READING)
        raise


def number_nodes(asked: Sequence[tuple[int | None, str]]) -> list[int]:
    """Return the number of each node, from the number it asks for, or None, and its name.

    Raises:
        LaunchError: two nodes want the same number.
    """
    hosts: dict[int, str] = {}
    for wanted, host in asked:
        if wanted is None:
            continue
        if wanted in hosts:
            raise LaunchError(
                f"--node-rank is {wanted} on two nodes, {hosts[wanted]} and {host}; give each node "
                "a number of its own, or leave the flag out on all of them"
            )
        hosts[wanted] = host
    free = (number for number in itertools.count() if number not in hosts)
    numbers = [next(free) if wanted is None else wanted for wanted, _ in asked]
    return [sorted(numbers).index(number) for number in numbers]
