"""`choose_blocks` finds the choice of the least time, as all choices one by one do."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator

import pytest

from anyrig.memory.recompute.choose import choose_blocks, choose_least_peak
from anyrig.memory.recompute.costs import UNREACHABLE_BYTES, Costs, Phase, compute_costs
from anyrig.memory.recompute.step_record import Event, Mark, StepRecord

MIB = 2**20


def chain(count: int, seed: int) -> Costs:
    """Return the costs of blocks in a row, of which some save nothing and some must not be kept."""
    numbers = random.Random(seed)
    order = tuple(numbers.sample(range(20), count))
    saved = {block: numbers.randint(-5, 100) * MIB for block in order}
    phases = []
    for position in [*range(count), *reversed(range(count))]:
        block, before = order[position], {each: saved[each] for each in order[:position]}
        kept = sum(before.values()) + numbers.randint(50, 400) * MIB
        own = kept + numbers.randint(-20, 20) * MIB
        phases.append(Phase(block, before, kept if numbers.random() < 0.9 else 2**62, own))
    loss = sum(saved.values()) + numbers.randint(50, 400) * MIB
    phases.append(Phase(None, saved, loss, loss))
    seconds = {block: numbers.random() for block in order}
    return Costs(order, seconds, saved, tuple(phases), overlapping=False)


def subsets(costs: Costs) -> Iterator[frozenset[int]]:
    for count in range(len(costs.order) + 1):
        yield from map(frozenset, itertools.combinations(costs.order, count))


def seconds_of(costs: Costs, chosen: frozenset[int]) -> float:
    return sum(costs.seconds[block] for block in chosen)


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_takes_the_least_time(seed: int) -> None:
    costs = chain(7, seed)
    peaks = {chosen: costs.peak_bytes(chosen) for chosen in subsets(costs)}
    lowest = min(peaks.values())
    assert peaks[choose_least_peak(costs)] == lowest
    assert choose_blocks(costs, lowest - 1) is None
    for budget_bytes in {*sorted(peaks.values())[:100:3], max(peaks.values()), lowest}:
        chosen = choose_blocks(costs, budget_bytes)
        assert chosen is not None
        assert peaks[chosen] <= budget_bytes
        best = min(seconds_of(costs, each) for each in peaks if peaks[each] <= budget_bytes)
        assert seconds_of(costs, chosen) <= best + 7e-4 * sum(costs.seconds.values())


def test_sixty_blocks_take_no_exponential_time() -> None:
    many = 60
    saved = {block: 7 * MIB + block for block in range(many)}
    loss = sum(saved.values())
    phase = Phase(None, saved, loss, loss)
    costs = Costs(tuple(range(many)), {b: 1 + b / 1e3 for b in range(many)}, saved, (phase,), False)
    chosen = choose_blocks(costs, loss // 2)
    assert chosen is not None
    # The sum of their numbers decides both what they save and their time.
    assert len(chosen) == 30
    assert 0 <= sum(chosen) - sum(range(many)) / 2 <= 10


def record(marks: list[tuple[Event, int, int]], last: int) -> StepRecord:
    return StepRecord(tuple(Mark(*each) for each in marks), last, (0.25, 0.5))


def events(passes: int) -> list[Event]:
    """The events of two blocks, which are called so many times before their backward passes."""
    forward: list[Event] = []
    backward: list[Event] = []
    for call in range(1, passes + 1):
        for block in (0, 1):
            forward += [("enter", block, call), ("leave", block, call)]
            backward.insert(0, ("backward", block, call))
    return forward + backward


FULL = {0: 40, 1: 25}
INPUT = 10


def levels(passes: int, kept: Collection[int]) -> StepRecord:
    """A step in which a block holds its activations if it is kept, else its input."""
    level = peak = 100
    marks: list[tuple[Event, int, int]] = []
    for what, block, call in events(passes):
        marks.append(((what, block, call), level, peak))
        if what == "leave":
            peak = level
            continue
        held = FULL[block] if block in kept else INPUT
        before = level if what == "enter" else level - held
        peak = before + FULL[block] + 3
        level = before + held if what == "enter" else before
    return record(marks, peak)


def test_what_a_block_saves_is_the_difference_of_two_records() -> None:
    costs = compute_costs(levels(1, ()), {frozenset({0, 1}): levels(1, {0, 1})})
    assert costs.order == (0, 1)
    assert costs.saved_bytes == {0: 30, 1: 15}
    assert costs.seconds == {0: 0.25, 1: 0.5}
    assert not costs.overlapping


def test_records_of_parts_tell_as_much_as_one_of_all() -> None:
    whole = compute_costs(levels(1, ()), {frozenset({0, 1}): levels(1, {0, 1})})
    parts = compute_costs(
        levels(1, ()),
        {frozenset({0}): levels(1, {0}), frozenset({1}): levels(1, {1})},
    )
    assert parts == whole


def test_a_block_that_cannot_be_kept() -> None:
    costs = compute_costs(levels(1, ()), {frozenset({1}): levels(1, {1})})
    assert costs.peak_bytes([]) == UNREACHABLE_BYTES
    assert choose_blocks(costs, 10**6) == {0}


def test_calls_before_the_first_backward_pass_add_up() -> None:
    costs = compute_costs(levels(3, ()), {frozenset({0, 1}): levels(3, {0, 1})})
    assert costs.overlapping
    assert max(phase.saved_bytes.get(0, 0) for phase in costs.phases) == 90
    highest, lowest = costs.peak_bytes([]), costs.peak_bytes([0, 1])
    assert choose_blocks(costs, highest) == frozenset()
    assert choose_blocks(costs, lowest) == {0, 1}
    assert choose_blocks(costs, lowest - 1) is None
    # Block 1 takes more time, and saves less.
    assert choose_blocks(costs, costs.peak_bytes([0])) == {0}
    assert choose_least_peak(costs) == {0, 1}


def test_calls_of_one_block_that_save_different_amounts() -> None:
    # The second phase is that of a smaller micro-batch.
    phases = (Phase(None, {0: 10, 1: 10}, 100, 100), Phase(None, {0: 4, 1: 10}, 96, 96))
    costs = Costs((0, 1), {0: 1.0, 1: 2.0}, {0: 10, 1: 10}, phases, overlapping=False)
    assert choose_blocks(costs, 92) == {0}
    assert choose_blocks(costs, 90) == {0, 1}  # not {1}, the best: it takes 10 for what 0 saves
    assert choose_blocks(costs, 80) is None
    assert choose_blocks(costs, 82) == {0, 1}


def test_of_overlapping_blocks_those_with_the_most_time_per_byte_are_kept() -> None:
    phases = (Phase(None, {0: 10, 1: 10, 2: 40}, 100, 100),)
    saved = {0: 10, 1: 10, 2: 40}
    costs = Costs((0, 1, 2), {0: 1.0, 1: 2.0, 2: 2.0}, saved, phases, overlapping=True)
    assert choose_blocks(costs, 90) == {2}
    assert choose_blocks(costs, 50) == {0, 2}
