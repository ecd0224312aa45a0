"""What each rank learns when ranks agree, and which of several errors it raises."""

from __future__ import annotations

from typing import Any

import pytest
from ranks_in_threads import ThreadRanks, run_on_ranks

from anyrig.errors import CheckpointError, OtherRankError, RankMismatchError, RankWaitError


def errors_of(*given: BaseException | None) -> list[str]:
    """Return the error that each rank raises if the ranks have these errors."""
    _, raised = run_on_ranks(len(given), lambda ranks: ranks.agree({}, given[ranks.rank]))
    return [f"{type(error).__name__}: {error}" for error in raised]


def test_texts_are_in_the_order_of_the_ranks() -> None:
    found: dict[int, list[str]] = {}

    def work(ranks: ThreadRanks) -> None:
        found[ranks.rank] = ranks.agree({"path": "a"}, None, f"text {ranks.rank}")

    assert run_on_ranks(3, work)[1] == [None] * 3
    assert [*found.values()] == [["text 0", "text 1", "text 2"]] * 3


def test_each_rank_raises_its_own_error_and_the_others_the_first() -> None:
    other = "OtherRankError: rank 1 failed in a save: CheckpointError: full"
    expected = [other, "CheckpointError: full", "ValueError: odd", other]
    assert errors_of(None, CheckpointError("full"), ValueError("odd"), None) == expected


@pytest.mark.parametrize(
    "follows", [OtherRankError("rank 2 failed"), RankWaitError("rank 2 did not come", [2])]
)
def test_an_error_that_follows_from_another_is_not_the_one_that_is_reported(
    follows: Exception,
) -> None:
    found = errors_of(follows, None, CheckpointError("full"))
    assert found[1] == "OtherRankError: rank 2 failed in a save: CheckpointError: full"
    (_, only) = errors_of(follows, None)
    assert only.startswith("OtherRankError: rank 0 failed in a save: ")


def test_a_fact_that_differs_is_named_with_its_rank() -> None:
    def work(ranks: ThreadRanks) -> None:
        ranks.agree({"path": "a", "step": 5 if ranks.rank == 2 else 4}, None)

    _, errors = run_on_ranks(3, work)
    for error in errors:
        assert isinstance(error, RankMismatchError)
        assert "rank 0 calls a save with step 4, rank 2 with 5; pass the same" in str(error)


def test_an_error_is_reported_before_facts_that_differ() -> None:
    def work(ranks: ThreadRanks) -> None:
        ranks.agree({"path": ranks.rank}, ValueError("odd") if ranks.rank == 0 else None)

    _, errors = run_on_ranks(2, work)
    assert isinstance(errors[0], ValueError)
    assert isinstance(errors[1], OtherRankError)


class Alone(ThreadRanks):
    """The other ranks do not come."""

    def _exchange(self, value: Any) -> list[Any]:
        raise RankWaitError("rank 1 did not come", [1])


def test_an_own_error_is_raised_even_if_the_others_do_not_come() -> None:
    _, errors = run_on_ranks(1, lambda ranks: ranks.agree({}, ValueError("odd")), Alone)
    assert isinstance(errors[0], ValueError)
    assert errors[0].__suppress_context__
    _, errors = run_on_ranks(1, lambda ranks: ranks.agree({}, None), Alone)
    assert isinstance(errors[0], RankWaitError)
