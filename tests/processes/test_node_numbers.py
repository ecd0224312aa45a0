"""`--node-rank`: the nodes agree on their numbers through the store of the rendezvous."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from anyrig.errors import LaunchError
from anyrig.processes.node_numbers import agree_on_number, number_nodes


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ([None], [0]),
        ([None, None, None], [0, 1, 2]),
        ([1, 0], [1, 0]),
        ([1, None, 0], [1, 2, 0]),
        ([None, None, 0], [1, 2, 0]),
        ([3, None, 1], [2, 0, 1]),  # three of four nodes joined
        ([2, 5, 0], [1, 2, 0]),
    ],
)
def test_each_node_gets_its_number(wanted: list[int | None], numbers: list[int]) -> None:
    assert number_nodes([(each, "host") for each in wanted]) == numbers


def agree(*wanted: int | None) -> list[object]:
    store = dist.HashStore()

    def ask(position: int) -> object:
        try:
            return agree_on_number(store, position, len(wanted), wanted[position])
        except LaunchError as error:
            return str(error)

    with ThreadPoolExecutor(len(wanted)) as nodes:
        return list(nodes.map(ask, range(len(wanted))))


def test_nodes_agree_through_their_store() -> None:
    assert agree(2, None, 0, 1) == [2, 3, 0, 1]


def test_a_conflict_of_numbers_is_raised_on_every_node() -> None:
    said = agree(1, None, 1)
    assert len(set(said)) == 1
    assert str(said[0]).startswith("--node-rank is 1 on two nodes, ")
    assert "give each node a different number" in str(said[0])
