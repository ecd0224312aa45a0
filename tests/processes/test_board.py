"""Errors of a rank about the ranks that it has waited for."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.distributed as dist

from anyrig.processes.group.board import Board
from anyrig.processes.group.membership import Group
from anyrig.processes.time_limit import TIME_LIMIT_VARIABLE


def test_who_has_come_to_nothing_yet_and_what_allows_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = dist.HashStore()
    groups = [Group(rank, 3, torch.device("cpu"), "gloo", "") for rank in range(2)]
    boards = [Board(group, store, "here", Counter()) for group in groups]
    host = boards[0].host
    monkeypatch.setenv(TIME_LIMIT_VARIABLE, "7.0")

    def late(seconds: float) -> str:
        return str(boards[0].late([1, 2], seconds, "a barrier", "train.py:3 in step"))

    assert late(2.5) == (
        "rank 0 waited at a barrier (train.py:3 in step), and ranks 1 and 2 did not take part "
        f"within 2.5 s: rank 1 on {host} has not yet reached any point where ranks wait for each "
        "other; rank 2 on an unknown host has not yet reached any point where ranks wait for each "
        "other. Check what these ranks do, or allow more time with timeout_seconds"
    )
    assert late(7).endswith("or allow more time with the launcher's --timeout")
    boards[1].reach("a gather")
    assert f"rank 1 on {host} last reached a gather at test_board.py:" in late(1)
