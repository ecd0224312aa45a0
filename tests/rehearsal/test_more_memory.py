"""How a program that ran out of memory is rehearsed with more of it."""

from __future__ import annotations

import pytest

from anyrig.rehearsal.more_memory import last_step


@pytest.mark.parametrize(("ended", "last"), [(0, 2), (1, 2), (2, 3), (7, 8)])
def test_the_step_that_failed_is_rehearsed_and_at_least_two(ended: int, last: int) -> None:
    assert last_step(ended) == last
