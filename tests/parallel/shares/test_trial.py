"""Shares that are measured in the first steps, by time or by memory, and held with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from gpus_of_specs import gpus
from hypothesis import given, settings
from hypothesis import strategies as st

from anyrig.devices import Device
from anyrig.parallel.shares.measure import MemoryMark
from anyrig.parallel.shares.shares import Shares, choose_shares
from anyrig.parallel.shares.trial import (
    MEASURED_STEPS,
    SPARE_FRACTION,
    SPEED_ROUNDS,
    WARM_UP_STEPS,
    StepMeasure,
    Trial,
    fit_memory,
    fit_speed,
    highest_peaks,
    level,
    sample_limits,
)

ROUND = WARM_UP_STEPS + MEASURED_STEPS


def train(
    shares: Shares,
    rows: int,
    speeds: Sequence[float],
    fixed_seconds: Sequence[float],
    steps: int = 40,
) -> list[Shares]:
    """Return the shares before each step, for devices of the given speeds."""
    history = []
    for step in range(steps):
        history.append(shares)
        slow = 10.0 if step == 0 else 1.0  # the first step allocates and tunes
        shares = shares.measured(
            [
                StepMeasure(count, slow * (fixed + count / speed) if count else None)
                for count, fixed, speed in zip(
                    shares.split(rows), fixed_seconds, speeds, strict=True
                )
            ]
        )
    return history


def test_unknown_gpus_begin_evenly_and_are_measured() -> None:
    devices = [Device("cuda", index, f"Gpu {index}") for index in range(2)]
    shares = choose_shares("speed", devices)
    assert shares.split(10) == (5, 5)
    assert shares.reason == "by speed: even to begin with, until the first steps' times are known"
    assert train(shares, 100, [30.0, 10.0], (0, 0))[-1].split(100) == (75, 25)


def test_speed_excludes_the_warm_up_step_and_is_held_with_its_reason() -> None:
    # A warm-up step that is slow on all devices would not matter; here, one device is slow.
    shares = choose_shares("speed", gpus("T4", "T4"))
    shares = shares.measured([StepMeasure(50, 100.0), StepMeasure(50, 1.0)])
    for _ in range(MEASURED_STEPS):
        assert shares.split(100) == (50, 50)
        shares = shares.measured([StepMeasure(50, 1.0), StepMeasure(50, 1.0)])
    assert shares.held
    assert shares.split(99) == (50, 49)
    assert shares.reason == "by speed: 50 samples in 1000 ms, 50 samples in 1000 ms; held"


def test_the_fastest_measured_step_counts() -> None:
    shares = choose_shares("speed", gpus("T4", "T4"))
    for seconds in (0.001, 5.0, 2.0):  # the warm-up, a delayed step, a normal step
        shares = shares.measured([StepMeasure(50, seconds), StepMeasure(50, 1.0)])
    assert shares.split(75) == (25, 50)
    expected = "by speed: from 50 samples in 2000 ms, 50 samples in 1000 ms; still measured"
    assert shares.reason == expected


@given(
    st.lists(st.floats(1.0, 10.0), min_size=2, max_size=8),
    st.floats(0.0, 20.0),
    st.integers(2000, 4000),
)
@settings(deadline=None)
def test_measured_times_come_out_equal(
    speeds: list[float], fixed_seconds: float, rows: int
) -> None:
    devices = [Device("cuda", index, f"Gpu {index}") for index in range(len(speeds))]
    fixed = [fixed_seconds] * len(speeds)
    history = train(choose_shares("speed", devices), rows, speeds, fixed)
    assert history[ROUND * SPEED_ROUNDS].held
    assert history[-1] is history[ROUND * SPEED_ROUNDS]
    seconds = [
        fixed_seconds + count / speed
        for count, speed in zip(history[-1].split(rows), speeds, strict=True)
    ]
    # The time of all devices together if no device waits.
    best = (rows + fixed_seconds * sum(speeds)) / sum(speeds)
    assert max(seconds) <= 1.03 * best


def test_a_device_without_rows_keeps_its_ratio() -> None:
    shares = choose_shares("speed", gpus("A100-80GB", "T4", "T4"))
    before = shares.weights
    for _ in range(ROUND):
        shares = shares.measured([StepMeasure(8, 0.2), StepMeasure(1, 0.1), StepMeasure(0)])
    assert shares.weights[:2] == pytest.approx((7.2, 1.8))  # 40 and 10 samples per second
    assert shares.weights[2] == pytest.approx(9 * before[2] / (before[0] + before[1]))


def test_what_a_device_needs_without_rows_is_told_by_the_second_round() -> None:
    devices = [Device("cuda", index, f"Gpu {index}") for index in range(2)]
    # The second device waits half a second for its parameters, whatever its samples.
    history = train(choose_shares("speed", devices), 1000, [800.0, 400.0], (0.0, 0.5))
    assert history[ROUND].split(1000) == (737, 263)  # as if its samples took that time
    assert history[2 * ROUND].split(1000) == (800, 200)
    assert history[3 * ROUND].held
    assert history[-1].split(1000) == (800, 200)


def test_noise_that_tilts_the_line_is_taken_for_none() -> None:
    rounds = [
        (StepMeasure(50, 1.0), StepMeasure(50, 2.0)),
        (StepMeasure(60, 0.9), StepMeasure(40, 1.6)),  # more samples in less time
    ]
    fitted = fit_speed(rounds, (1.0, 1.0))
    assert fitted is not None
    assert fitted[1] == pytest.approx((100 * 60 / 0.9 / (60 / 0.9 + 25), 2500 / (60 / 0.9 + 25)))


def test_a_device_that_is_late_without_rows_gets_none() -> None:
    assert level(10, [0.0, 99.0, 0.0], [1.0, 1.0, 1.0]) == (5.0, (5.0, 0.0, 5.0))


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 10)), min_size=1, max_size=8),
    st.floats(0.1, 1000),
)
def test_all_who_get_rows_reach_the_level(lines: list[tuple[float, float]], rows: float) -> None:
    fixed, slopes = [line[0] for line in lines], [line[1] for line in lines]
    reached, found = level(rows, fixed, slopes)
    assert sum(found) == pytest.approx(rows)
    for count, (begin, slope) in zip(found, lines, strict=True):
        assert count >= 0
        if count:
            assert begin + count * slope == pytest.approx(reached)
        else:
            assert begin >= reached * (1 - 1e-9)


def test_without_times_speed_is_held_as_begun() -> None:
    shares = choose_shares("speed", gpus("A100-80GB", "T4"))
    begun = shares.split(100)
    for _ in range(ROUND):
        shares = shares.measured([StepMeasure(80), StepMeasure(20)])
    assert shares.held
    assert shares.split(100) == begun
    assert "no step was timed" in shares.reason


MIB = 2**20


def use(rows: Sequence[int], lead_extra: int, row_bytes: int, base: int) -> list[StepMeasure]:
    return [
        StepMeasure(
            count,
            1.0,
            base_bytes=base,
            peak_bytes=base + count * row_bytes + (lead_extra if index == 0 else 0),
        )
        for index, count in enumerate(rows)
    ]


def test_memory_makes_the_lead_as_full_as_the_others() -> None:
    shares = choose_shares("memory", gpus("T4", "T4", "T4", "T4"))
    for _ in range(ROUND):
        shares = shares.measured(
            use(shares.split(64), lead_extra=160 * MIB, row_bytes=10 * MIB, base=500 * MIB)
        )
    assert shares.held
    split = shares.split(64)
    # 160 MiB are 16 samples: the lead has 16 fewer than the others.
    assert split == (4, 20, 20, 20)
    after = use(split, lead_extra=160 * MIB, row_bytes=10 * MIB, base=500 * MIB)
    assert len({measure.peak_bytes for measure in after}) == 1


def test_memory_gives_nothing_to_a_lead_that_is_fuller_than_the_others_can_be() -> None:
    measured = use((16, 16), lead_extra=900 * MIB, row_bytes=10 * MIB, base=0)
    assert fit_memory(measured, (None, None)) == (0.0, 32.0)


def test_memory_fills_unequal_devices_to_the_same_fraction() -> None:
    sizes = (40 * 1024 * MIB, 16 * 1024 * MIB)
    measured = use((20, 8), lead_extra=100 * MIB, row_bytes=500 * MIB, base=300 * MIB)
    fitted = fit_memory(measured, sizes)
    assert fitted is not None
    assert sum(fitted) == pytest.approx(28)
    full = [
        (400 * MIB + fitted[0] * 500 * MIB) / sizes[0],
        (300 * MIB + fitted[1] * 500 * MIB) / sizes[1],
    ]
    assert full[0] == pytest.approx(full[1])


def test_memory_without_peaks_is_held_as_begun() -> None:
    shares = choose_shares("memory", gpus("A100-80GB", "T4"))
    for _ in range(ROUND):
        shares = shares.measured([StepMeasure(1), StepMeasure(1)])
    assert shares.held
    assert "no step showed its peak on each device" in shares.reason


def test_a_step_below_the_peak_of_an_earlier_one_is_known_by_that_one() -> None:
    shares = choose_shares("memory", gpus("T4", "T4"))
    first = use((16, 16), lead_extra=80 * MIB, row_bytes=10 * MIB, base=500 * MIB)
    for step in [first] + [[StepMeasure(16, 1.0, 500 * MIB)] * 2] * (ROUND - 1):
        assert not shares.held
        shares = shares.measured(step)
    assert shares.split(32) == (12, 20)


def test_the_highest_peak_of_each_device_counts() -> None:
    steps = [
        [StepMeasure(4, peak_bytes=9), StepMeasure(4)],
        [StepMeasure(5, peak_bytes=7), StepMeasure(5, peak_bytes=0)],
        [StepMeasure(6, peak_bytes=9), None],
    ]
    found = highest_peaks(steps)
    assert found == (StepMeasure(6, peak_bytes=9), StepMeasure(5, peak_bytes=0))


def test_what_two_marks_tell_of_a_step() -> None:
    begin = MemoryMark(allocated_bytes=10, peak_bytes=50)
    assert begin.peak_until(MemoryMark(10, 51), samples=2) == 51
    assert begin.peak_until(MemoryMark(10, 50), samples=2) is None  # an earlier step's peak
    assert begin.peak_until(MemoryMark(12, 50), samples=0) == 12
    assert begin.peak_until(MemoryMark(10, 20), samples=2) is None  # reset by the program


def test_speed_is_bounded_by_memory() -> None:
    devices = gpus("T4", "T4")
    total = devices[0].total_bytes or 0
    row_bytes = total // 100
    shares = choose_shares("speed", devices)
    while not shares.held:
        shares = shares.measured(
            [
                StepMeasure(count, count / speed, 0, count * row_bytes)
                for count, speed in zip(shares.split(40), (9.0, 1.0), strict=True)
            ]
        )
    limit = int(100 * (1 - SPARE_FRACTION))
    assert shares.sample_limits == (limit, limit)
    assert shares.split(40) == (36, 4)
    assert shares.split(120) == (limit, 120 - limit)


def test_speed_is_bounded_by_the_peaks_of_all_rounds() -> None:
    devices = gpus("T4", "T4")
    total = devices[0].total_bytes or 0
    row_bytes = total // 100
    shares = choose_shares("speed", devices)
    for _ in range(ROUND):
        step = [StepMeasure(20, 1.0, 0, 20 * row_bytes), StepMeasure(20, 3.0, 0, 20 * row_bytes)]
        shares = shares.measured(step)
    assert shares.split(40) == (30, 10)
    for _ in range(ROUND):  # device 0 now holds more; device 1 stays below its earlier peak
        step = [StepMeasure(30, 1.5, 0, 60 * row_bytes), StepMeasure(10, 1.5, 0, None)]
        shares = shares.measured(step)
    limit = int(100 * (1 - SPARE_FRACTION))
    assert shares.sample_limits == (limit - 30, limit)


# At their limits ----------------------------------------------------------------------------------


def test_a_device_at_its_limit_is_not_over_it() -> None:
    assert Shares((1.0, 1.0), "", (5, 5)).split(10) == (5, 5)
    # If device 2 were over its limit, device 1 would get all that device 0 did not.
    assert Shares((2.0, 1.0, 1.0), "", (4, None, 2)).split(8) == (4, 2, 2)
    assert Shares((2.0, 1.0, 1.0), "", (3, None, 2)).split(8) == (3, 3, 2)


@pytest.mark.parametrize(("slowest_seconds", "held"), [(1.025, True), (1.0250001, False)])
def test_shares_at_the_limit_of_what_is_good_enough_are_held(
    slowest_seconds: float, held: bool
) -> None:
    shares = choose_shares([1.0, 4.0], gpus("T4", "T4"))
    trial = Trial("speed", (None, None))
    shares = replace(shares, trial=trial)
    for _ in range(ROUND):  # 1.025 s are 1.02 times the time of devices that end together
        shares = shares.measured([StepMeasure(1, slowest_seconds), StepMeasure(4, 1.0)])
    assert shares.held is held
    assert (shares.weights == (1.0, 4.0)) is held


@pytest.mark.parametrize(("before", "slope"), [(49, 0.02), (48, 0.01)])
def test_rounds_tell_a_slope_by_more_than_a_fiftieth_of_the_rows(before: int, slope: float) -> None:
    rounds = [
        (StepMeasure(before, 1.0 - 0.01 * (50 - before)), StepMeasure(10, 2.0)),
        (StepMeasure(50, 1.0), StepMeasure(10, 2.0)),
    ]
    fitted = fit_speed(rounds, (5.0, 1.0))
    assert fitted is not None
    fixed = 1.0 - 50 * slope
    expected = level(60, [fixed, 0.0], [slope, 0.2])
    assert fitted[0] == pytest.approx(expected[0])
    assert fitted[1] == pytest.approx(expected[1])


def test_rows_that_take_no_memory_set_no_limits() -> None:
    step = [StepMeasure(4, 1.0, 100, 100), StepMeasure(4, 1.0, 100, 100)]
    assert sample_limits(step, (1000, 1000)) is None
    assert fit_memory(step, (1000, 1000)) is None


def test_the_limit_is_the_last_row_for_which_there_is_room() -> None:
    step = [StepMeasure(5, 1.0, 0, 50), StepMeasure(5, 1.0, 0, 50)]
    room = 1000 * (1 - SPARE_FRACTION)
    assert sample_limits(step, (1000, 999)) == (int(room / 10), int(room / 10) - 1)


@pytest.mark.parametrize("base", [None, 100])
def test_steps_without_rows_or_without_a_base_tell_nothing_of_a_row(base: int | None) -> None:
    rows = 0 if base else 4
    step = [StepMeasure(4, 1.0, 100, 300), StepMeasure(rows, 1.0, base, 200)]
    assert sample_limits(step, (1000, 1000)) is None
    assert fit_memory(step, (1000, 1000)) is None


def test_bytes_a_row_are_told_by_the_others_than_the_lead() -> None:
    """Of 1000 bytes, 50 stay free; the lead needs 10 bytes per sample, and the rest is fixed."""
    step = [StepMeasure(10, 1.0, 100, 500), StepMeasure(10, 1.0, 100, 200)]
    assert sample_limits(step, (1000, 1000)) == (55, 85)
    assert sample_limits(step[:1], (1000,)) == (21,)
    assert sample_limits(step, (1000, None)) == (55, None)
    small = [StepMeasure(10, 1.0, 0, 90), StepMeasure(10, 1.0, 0, 100)]  # fixed bytes are >= 0
    assert sample_limits(small, (1000, 1000)) == (95, 95)
    assert sample_limits(small, (0, 1000)) == (0, 95)
