"""Parts of a node's agent that need no ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

from anyrig.processes.agent import RankAgent, _is_suspended, _sentence


@pytest.mark.parametrize(
    ("node", "remaining", "others", "agreed"),
    [
        (0, 3, {1: 0, 2: 0}, 3),
        (0, 3, {1: 2, 2: 1}, 1),  # this node is new
        (2, 1, {0: 0, 1: 1}, 1),  # this node has seen the most
        (1, 3, {0: 2, 2: 0}, 1),
        (1, 2, {0: 1, 2: 3}, 0),
        (1, 2, {0: 1, 2: 5}, 0),  # the other allows more restarts
    ],
)
def test_nodes_count_the_restarts_of_the_oldest(
    node: int, remaining: int, others: dict[int, int], agreed: int
) -> None:
    store = dist.HashStore()
    for other, restarts in others.items():
        store.set(f"anyrig/restarts/{other}", str(restarts))
    agent: Any = RankAgent.__new__(RankAgent)
    agent._worker_group = SimpleNamespace(spec=SimpleNamespace(max_restarts=3))
    agent._remaining_restarts = remaining
    agent._agree_on_attempt(store, node, 3)
    assert agent._remaining_restarts == agreed
    assert int(store.get(f"anyrig/restarts/{node}")) == 3 - remaining


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (SignalException("", signal.SIGINT), "the launcher on a was stopped (SIGINT)"),
        (
            RendezvousConnectionError("gone"),
            "the connection to the node that hosts the rendezvous is lost",
        ),
        (ValueError("no"), "the launcher on a failed: ValueError('no')"),
    ],
)
def test_the_agent_says_why_it_ends(reason: BaseException, sentence: str) -> None:
    assert _sentence(reason, " on a") == sentence


def test_a_suspended_child_is_recognized() -> None:
    read = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(read, stdin=subprocess.PIPE) as child:
        assert not _is_suspended(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert _is_suspended(child.pid)
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not _is_suspended(child.pid)
    assert not _is_suspended(child.pid)
