"""The search for the largest value: in few rehearsals, and never more than fits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from made_candidates import GIB, MARGIN, candidate, run_search

from anyrig.planning.candidate import Verdict
from anyrig.planning.search import Point, points_of, predict, prefer, search
from anyrig.planning.variation import Variation

RANGE = Variation("--batch-size", 1, 4096)
LIMIT = 80 * GIB
MIB = 2**20


def largest(needed: Callable[[int], float], limit: int = LIMIT) -> int:
    return max(value for value in range(1, 4097) if needed(value) + MARGIN <= limit)


def certain(tried: list, of: Verdict = Verdict.CERTAIN) -> int | None:
    return max((one.value for one in tried if one.verdict is of), default=None)


FORMULAS: dict[str, Callable[[int], float]] = {
    "a line": lambda value: 13 * GIB + value * 0.9 * GIB,
    "a flat line": lambda value: 13 * GIB + value * 20 * MIB,
    "segments of 20 MiB": lambda value: 3 * GIB + math.ceil(value * 7.3) * 20 * MIB,
    # At first, an optimizer's step takes more than the activations.
    "a bend": lambda value: max(20 * GIB, 2 * GIB + value * 0.1 * GIB),
    "a bend between the first two": lambda value: max(20 * GIB, 14 * GIB + value * GIB),
    "a line that gets steeper": lambda value: 10 * GIB + value * 30 * MIB + value**2 * MIB,
    "a line that gets flatter": lambda value: 10 * GIB + value**0.7 * GIB,
}


@pytest.mark.parametrize("needed", FORMULAS.values(), ids=FORMULAS)
def test_the_largest_value_is_found_within_two_percent(needed: Callable[[int], float]) -> None:
    tried = run_search(RANGE, LIMIT, needed)
    found, best = certain(tried), largest(needed)
    assert found is not None
    assert 0.96 * best - 1 <= found <= best  # 2 % of the search, and 2 % for a rounder value
    assert len(tried) <= 9


def test_a_line_takes_three_rehearsals() -> None:
    tried = run_search(RANGE, LIMIT, FORMULAS["a line"])
    assert [one.value for one in tried] == [1, 8, 72]  # 72 is a multiple of 8
    assert largest(FORMULAS["a line"]) == 73


def test_a_line_through_small_values_is_not_trusted_far_away() -> None:
    # Eight samples are still within what the optimizer's step takes.
    tried = run_search(RANGE, LIMIT, lambda value: max(3500 + 56 * value, 3460 + 60 * value) * MIB)
    assert [one.value for one in tried] == [1, 8, 344, 1288]
    assert all(one.verdict is Verdict.CERTAIN for one in tried)


@pytest.mark.parametrize("needed", FORMULAS.values(), ids=FORMULAS)
@pytest.mark.parametrize("more_gib", [-0.2, 0, 0.3])
def test_the_points_of_another_rig_save_rehearsals(
    needed: Callable[[int], float], more_gib: float
) -> None:
    hints = points_of(run_search(RANGE, LIMIT, needed), LIMIT)

    def here(value: int) -> float:  # another context
        return needed(value) + more_gib * GIB

    smaller = 24 * GIB
    tried = run_search(RANGE, smaller, here, hints)
    found, best = certain(tried), largest(here, smaller)
    assert found is not None
    assert 0.96 * best - 1 <= found <= best
    assert len(tried) <= 7
    straight = run_search(
        RANGE, smaller, FORMULAS["a line"], [Point(1, 15 * GIB), Point(2, 16 * GIB)]
    )
    assert len(straight) <= 3


def test_wrong_points_of_another_rig_do_no_harm() -> None:
    needed = FORMULAS["a line"]
    for wrong in (0.01, 100):
        hints = [Point(1, 14 * GIB), Point(100, int(14 * GIB + 99 * wrong * GIB))]
        tried = run_search(RANGE, LIMIT, needed, hints)
        found = certain(tried)
        assert found is not None
        assert 0.96 * 73 - 1 <= found <= 73
        assert len(tried) <= 9


def test_a_rig_that_needs_more_than_its_points_say_takes_four_rehearsals() -> None:
    hints = [Point(1, 6 * GIB), Point(8, 8 * GIB)]
    tried = run_search(RANGE, 15 * GIB, lambda value: 4 * GIB + 1.6 * value * GIB, hints)
    assert [one.value for one in tried] == [32, 1, 5, 6]


def test_all_values_fit() -> None:
    tried = run_search(Variation("--n", 1, 64), LIMIT, FORMULAS["a flat line"])
    assert certain(tried) == 64
    assert len(tried) <= 4


def test_no_value_fits() -> None:
    tried = run_search(RANGE, 13 * GIB, FORMULAS["a line"])
    assert [one.verdict for one in tried] == [Verdict.NO]
    hints = [Point(1, 15 * GIB), Point(8, 22 * GIB)]
    tried = run_search(RANGE, 13 * GIB, FORMULAS["a line"], hints)
    assert [one.value for one in tried] == [1]
    tried = run_search(RANGE, 14 * GIB, FORMULAS["a line"])
    assert [one.verdict for one in tried] == [Verdict.LIKELY, Verdict.NO]


def test_larger_values_are_tried_where_the_least_is_likely() -> None:
    # The blocks of one sample leave more unused memory than those of two.
    tried = run_search(RANGE, LIMIT, lambda value: LIMIT if value == 1 else (10 + 2 * value) * GIB)
    assert tried[0].verdict is Verdict.LIKELY
    assert certain(tried) in (32, 33, 34)
    assert len(tried) <= 6


def test_values_that_are_all_likely_are_tried_until_one_does_not_fit() -> None:
    tried = run_search(RANGE, LIMIT, lambda value: LIMIT - GIB + value * GIB // 4)
    assert [one.value for one in tried] == [1, 2, 4, 8]
    assert [one.verdict for one in tried] == [*[Verdict.LIKELY] * 3, Verdict.NO]


def test_memory_that_does_not_grow_is_tried_at_both_ends() -> None:
    tried = run_search(RANGE, LIMIT, lambda value: 20 * GIB)
    assert [one.value for one in tried] == [1, 8, 4096]


def test_one_value_takes_one_rehearsal() -> None:
    tried = run_search(Variation("--n", 5, 5), LIMIT, FORMULAS["a line"])
    assert [one.value for one in tried] == [5]


def test_a_failure_ends_the_search() -> None:
    searching = search(RANGE, LIMIT, ())
    assert next(searching) == 1
    with pytest.raises(StopIteration):
        searching.send(candidate(1, Verdict.FAILED, None))


def test_a_prediction_follows_the_lines_through_the_points() -> None:
    curve = [Point(1, 10), Point(11, 20), Point(21, 40)]
    assert predict(curve, 15) == 6
    assert predict(curve, 30) == 16
    assert predict(curve, 60) == 31  # beyond the last
    assert predict(curve, 8) == -1  # before the first
    assert predict(curve[:1], 60) is None
    assert predict([Point(1, 10), Point(2, 10)], 60) is None


@pytest.mark.parametrize(
    ("value", "least", "rounder"),
    [(130, 1, 128), (519, 1, 512), (527, 1, 520), (67, 1, 67), (130, 129, 130), (1, 1, 1)],
)
def test_rounder_values_are_preferred(value: int, least: int, rounder: int) -> None:
    assert prefer(value, least) == rounder
