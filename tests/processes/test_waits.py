"""Functions in which a rank waits for others are marked, so that no waiting rank is blamed."""

from anyrig.processes import waits
from anyrig.processes.group.board import Board, wait_for_hosts


def test_waits_are_marked() -> None:
    for function in (Board.wait_until, wait_for_hosts):
        assert function.__code__.co_filename == waits.__file__
