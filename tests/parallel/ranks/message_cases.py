"""What ranks do in `test_group_ranks.py`: how the ranks of a node announce their steps."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest
import torch
from group_of_ranks import rank, ranks
from on_ranks import TIME_LIMIT_SECONDS
from torch import nn

import anyrig
from anyrig.processes.group import node_sockets
from anyrig.processes.group.direct_messages import open_messages
from anyrig.processes.group.membership import current_context


def take_a_step() -> None:
    """Spread a model, and let the ranks announce a step of it to each other."""
    model = anyrig.spread(nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()


def case_ranks_of_one_node_announce_their_steps_by_sockets() -> None:
    context = current_context()
    take_a_step()
    direct, tried = context.direct, context.counts["direct"]
    assert (direct.rank, direct.limit_seconds) == (rank(), TIME_LIMIT_SECONDS)
    assert direct._sockets.keys() == {*range(ranks())} - {rank()}
    with pytest.MonkeyPatch.context() as patch:
        sent: list[Any] = []
        alltoall = direct.alltoall
        patch.setattr(direct, "alltoall", lambda part: sent.append(part) or alltoall(part))
        take_a_step()
    assert sent
    assert context.direct is direct
    for each in direct._sockets.values():  # a message leaves at once
        assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert context.counts["direct"] == tried  # the ranks connect once


def case_gloo_announces_steps_where_two_ranks_cannot_connect() -> None:
    def refuse(*_: Any) -> None:
        raise ConnectionRefusedError

    context = current_context()
    for change in ("one is late", "another node", "another device", "many ranks"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(context, "direct", None)
            patch.setattr(context, "has_tried_direct", False)
            patch.setattr(node_sockets, "_CONNECT_SECONDS", 0.3)
            if change == "many ranks":
                patch.setattr(node_sockets, "_MOST_RANKS", ranks() - 1)
            elif rank() == 1 and change == "one is late":
                patch.setattr(node_sockets, "connect", refuse)
            elif rank() == 1 and change == "another node":
                patch.setenv("LOCAL_WORLD_SIZE", "1")
                patch.setenv("LOCAL_RANK", "0")
            elif rank() == 1:
                patch.setattr(context, "group", replace(context.group, device=torch.device("meta")))
            open_messages(context)
            assert context.direct is None, change
            patch.undo()
            patch.setattr(context, "direct", None)
            take_a_step()
