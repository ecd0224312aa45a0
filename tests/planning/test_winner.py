"""Which rig of an answer is the cheapest or the fastest, and with which value."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_candidates import candidate

from anyrig.planning.candidate import Candidate, Verdict
from anyrig.planning.fitted_rig import FittedRig
from anyrig.planning.variation import Variation
from anyrig.planning.winner import Winner, find_winner
from anyrig.rehearsal.facts import StepInterval
from anyrig.virtual.rig import VirtualRig

BATCH = Variation("--batch-size", 1, 512)


def tried(
    rig: str,
    value: int,
    *,
    seconds: float,
    price: float | None = None,
    verdict: Verdict = Verdict.CERTAIN,
    spread: float = 1.0,
    has_samples: bool = True,
) -> Candidate:
    """Return a candidate whose time may be off by the factor `spread`."""
    made = candidate(value, verdict, 1 if verdict is Verdict.CERTAIN else None)
    rate = value / seconds if has_samples else None
    interval = StepInterval(seconds / spread, seconds * spread, 9, "of this kind", None)
    cost = None if price is None or rate is None else price / 3600 * 10**6 / rate
    per_step = None if price is None else price / 3600 * 10**6 * seconds
    found = replace(
        made.found,
        rig=rig,
        step_seconds=seconds,
        samples_per_second=rate,
        price_per_hour=price,
        cost_per_million_samples=cost,
        cost_per_million_steps=per_step,
        step_interval=interval,
    )
    return replace(made, found=found)


def row(*candidates: Candidate) -> FittedRig:
    rig = VirtualRig.parse(candidates[0].found.rig)
    return FittedRig(rig, candidates, True, None, len(candidates), 0)


def winner_of(*rows: FittedRig, currency: str | None = None) -> Winner:
    found = find_winner(rows, currency)
    assert found is not None
    return found


def test_the_cheapest_need_not_be_the_fastest() -> None:
    slow = row(tried("T4", 8, seconds=0.4, price=0.36))
    fast = row(tried("A100-80GB", 64, seconds=0.8, price=3.6))
    cheap = winner_of(slow, fast, currency="EUR")
    assert cheap.describe(BATCH) == (
        "the cheapest: T4 with --batch-size=8, 5 EUR per million samples"
    )
    assert winner_of(slow, fast).describe(BATCH) == (
        "the fastest: A100-80GB with --batch-size=64, 80 samples/s"
    )
    assert cheap.as_json() == {
        "rig": "T4",
        "value": 8,
        "by": "price",
        "not_told_apart_from": [],
    }
    assert winner_of(slow, fast).as_json()["by"] == "speed"


def test_a_smaller_value_wins_if_it_is_faster_for_each_sample() -> None:
    first = row(tried("T4", 8, seconds=0.4), tried("T4", 16, seconds=0.9))
    other = row(tried("L4", 8, seconds=0.5))
    assert winner_of(first, other).describe(BATCH).startswith("the fastest: T4 with --batch-size=8")


def test_what_does_not_fit_for_certain_does_not_win() -> None:
    first = row(tried("T4", 8, seconds=0.4), tried("T4", 16, seconds=0.1, verdict=Verdict.LIKELY))
    other = row(tried("L4", 8, seconds=0.3))
    assert winner_of(first, other).best.found.rig == "L4"


def test_rigs_that_cannot_be_told_apart_are_named() -> None:
    rows = [
        row(tried(rig, 8, seconds=seconds, price=1.0, spread=1.2))
        for rig, seconds in [("T4", 0.5), ("L4", 0.4), ("A10", 1.0)]
    ]
    assert winner_of(*rows).describe(None) == (
        "the fastest: L4, 20 samples/s; by the predicted time of a sample it cannot be told apart "
        "from T4"
    )
    assert winner_of(*rows, currency="USD").alike == ("T4",)
    assert "by the predicted price of a sample it" in winner_of(*rows, currency="USD").describe(
        None
    )


def test_a_rig_whose_errors_are_unknown_is_told_apart() -> None:
    near = tried("L4", 8, seconds=0.5)
    unknown = replace(near, found=replace(near.found, step_interval=None))
    assert winner_of(row(tried("T4", 8, seconds=0.4)), row(unknown)).alike == ()


def test_steps_count_where_a_rig_s_samples_are_unknown() -> None:
    known = row(tried("T4", 8, seconds=0.4, price=3.6))
    unknown = row(tried("L4", 8, seconds=0.5, price=3.6, has_samples=False))
    assert winner_of(known, unknown).describe(BATCH) == (
        "the fastest: T4 with --batch-size=8, 2.5 steps/s"
    )
    assert winner_of(known, unknown, currency="EUR").describe(BATCH) == (
        "the cheapest: T4 with --batch-size=8, 400 EUR per million steps"
    )


@pytest.mark.parametrize("currency", [None, "EUR"])
def test_steps_of_different_values_are_not_compared(currency: str | None) -> None:
    a, b = (
        row(tried(rig, value, seconds=0.4, price=3.6, has_samples=False))
        for rig, value in (("T4", 8), ("L4", 16))
    )
    assert find_winner([a, b], currency) is None


@pytest.mark.parametrize("currency", [None, "EUR"])
def test_one_rig_that_fits_is_no_choice(currency: str | None) -> None:
    fits = row(tried("T4", 8, seconds=0.4, price=1.0))
    too_small = row(tried("L4", 8, seconds=0.4, price=1.0, verdict=Verdict.NO))
    assert find_winner([fits, too_small], currency) is None
    assert find_winner([fits], currency) is None


def test_a_rig_without_a_price_is_not_the_cheapest() -> None:
    rows = [
        row(tried("T4", 8, seconds=0.4, price=2.0)),
        row(tried("L4", 8, seconds=0.4, price=1.0)),
        row(tried("A10", 8, seconds=0.1)),
    ]
    assert winner_of(*rows, currency="EUR").best.found.rig == "L4"
    assert find_winner(rows[1:], "EUR") is None
