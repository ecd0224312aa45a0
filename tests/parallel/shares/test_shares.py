"""Shares: whole samples for every device, the right numbers, and measuring in the first steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyrig.devices import Device
from anyrig.errors import SharesError
from anyrig.hardware.spec import specs
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

WEIGHTS = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.integers(1, 10).map(float)),
    min_size=1,
    max_size=9,
).filter(any)
ROUND = WARM_UP_STEPS + MEASURED_STEPS


def gpus(*keys: str) -> list[Device]:
    return [
        Device(
            "cuda",
            index,
            specs()[key].names[0],
            total_bytes=specs()[key].memory_bytes,
            spec=specs()[key],
        )
        for index, key in enumerate(keys)
    ]


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


@pytest.mark.parametrize(
    ("rows", "devices", "split"),
    [
        (30, 8, [4] * 7 + [2]),
        (10, 8, [2] * 5 + [0] * 3),
        (30, 2, [15, 15]),
        (10, 3, [4, 4, 2]),
        (1, 4, [1, 0, 0, 0]),
        (0, 2, [0, 0]),
    ],
)
def test_even_shares_are_those_of_data_parallel(rows: int, devices: int, split: list[int]) -> None:
    assert list(Shares((1.0,) * devices, "").split(rows)) == split


@given(st.integers(1, 200), st.integers(1, 12))
def test_even_shares_are_those_of_chunk(rows: int, devices: int) -> None:
    chunks = [len(chunk) for chunk in torch.empty(rows).chunk(devices)]
    split = Shares((2.5,) * devices, "").split(rows)
    assert list(split) == chunks + [0] * (devices - len(chunks))


@pytest.mark.parametrize(
    ("weights", "rows", "split"),
    [
        ((3, 1), 8, (6, 2)),
        ((0.7, 0.2, 0.1), 10, (7, 2, 1)),
        ((1, 1, 2), 5, (1, 1, 3)),
        ((1, 3), 2, (1, 1)),  # equal fractions: the first gets the sample
        ((1, 0, 1), 3, (2, 0, 1)),
        ((5, 3, 2), 10, (5, 3, 2)),
    ],
)
def test_largest_remainders(weights: tuple[float, ...], rows: int, split: tuple[int, ...]) -> None:
    assert Shares(tuple(map(float, weights)), "").split(rows) == split


@given(WEIGHTS, st.integers(0, 5000))
def test_split_is_whole_exact_and_next_to_the_quota(weights: list[float], rows: int) -> None:
    split = Shares(tuple(weights), "").split(rows)
    assert sum(split) == rows
    assert all(count == 0 for count, weight in zip(split, weights, strict=True) if not weight)
    if len(set(weights)) > 1:
        for count, weight in zip(split, weights, strict=True):
            assert abs(count - rows * weight / sum(weights)) < 1 + 1e-6


@given(WEIGHTS, st.integers(0, 5000), st.sampled_from([0.25, 3.0, 1024.0]))
def test_only_ratios_count(weights: list[float], rows: int, factor: float) -> None:
    # Powers of two scale exactly; three scales only whole numbers exactly.
    if factor == 3.0:
        weights = [float(round(weight)) for weight in weights]
        if not any(weights):
            return
    scaled = Shares(tuple(weight * factor for weight in weights), "")
    assert scaled.split(rows) == Shares(tuple(weights), "").split(rows)


@pytest.mark.parametrize(
    ("weights", "counts", "joined"),
    [
        ((8, 1, 1), (8, 1, 1), (8, 2, 0)),
        ((1, 1), (2, 1), (3, 0)),
        ((1, 1, 1, 1), (2, 1, 1, 1), (3, 2, 0, 0)),
        ((1, 3), (1, 1), (0, 2)),
        ((6, 4, 1), (5, 4, 1), (6, 4, 0)),  # 6 / 6 is less than 5 / 4
        ((1, 1), (1, 0), (1, 0)),  # there is no second sample
        ((1, 1), (0, 0), (0, 0)),
        ((1, 1), (2, 2), (2, 2)),
    ],
)
def test_single_rows_join_others(
    weights: tuple[float, ...], counts: tuple[int, ...], joined: tuple[int, ...]
) -> None:
    assert Shares(weights, "").join_singles(counts) == joined


@given(WEIGHTS, st.integers(0, 60), st.lists(st.none() | st.integers(0, 20), min_size=9))
def test_no_part_has_one_row_of_several(
    weights: list[float], rows: int, limits: list[int | None]
) -> None:
    shares = Shares(tuple(weights), "", tuple(limits[: len(weights)]))
    split = shares.split(rows)
    joined = shares.join_singles(split)
    assert sum(joined) == rows
    assert rows == 1 or 1 not in joined
    if 1 not in split:
        assert joined == split
    assert all(count == 0 for count, weight in zip(joined, weights, strict=True) if not weight)


def test_a_single_row_joins_a_device_with_room() -> None:
    shares = Shares((4.0, 4.0, 1.0), "", (4, 5, None))
    assert shares.join_singles((4, 4, 1)) == (4, 5, 0)
    assert Shares((4.0, 1.0), "", (4, None)).join_singles((4, 1)) == (5, 0)  # no device has room


@given(
    st.lists(st.tuples(st.floats(0, 9), st.one_of(st.none(), st.integers(0, 60))), min_size=1),
    st.integers(0, 400),
)
def test_limits_hold_unless_all_are_at_theirs(
    devices: list[tuple[float, int | None]], rows: int
) -> None:
    weights = tuple(weight for weight, _ in devices)
    limits = tuple(limit for _, limit in devices)
    if not any(weights):
        return
    split = Shares(weights, "", limits).split(rows)
    assert sum(split) == rows
    room = sum(
        rows if limit is None else limit
        for weight, limit in zip(weights, limits, strict=True)
        if weight
    )
    if room >= rows:
        assert all(
            limit is None or count <= limit for count, limit in zip(split, limits, strict=True)
        )


def test_a_limit_passes_its_surplus_to_the_others_by_their_weights() -> None:
    assert Shares((6.0, 2.0, 1.0), "", (3, None, None)).split(9) == (3, 4, 2)
    assert Shares((1.0, 1.0), "", (3, None)).split(10) == (3, 7)
    assert Shares((1.0, 1.0), "", (3, 3)).split(10) == (5, 5)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((), "at least one share must be above zero; got none"),
        ((0, 0), "at least one share must be above zero; got 0, 0"),
        ((1, -1), "shares are numbers from zero up; got 1, -1"),
        ((1, float("nan")), "shares are numbers from zero up; got 1, nan"),
        ((1, 2, 3), "3 shares for 2 devices; give one for each, in order"),
        ("fast", "shares='fast' is not a way to share a batch; use one of 'auto', 'even', 's"),
        (["a", "b"], r"cannot read \['a', 'b'\] as shares"),
    ],
)
def test_what_is_no_share(weights: Sequence[float] | str, message: str) -> None:
    with pytest.raises(SharesError, match=message):
        choose_shares(weights, gpus("T4", "T4"))


def test_by_default_equal_devices_have_equal_shares() -> None:
    alike = choose_shares("auto", gpus("T4", "T4"))
    assert alike.held
    assert alike.split(5) == (3, 2)
    assert str(alike) == "50.0%, 50.0%: even: the devices are alike"


def test_by_default_unequal_devices_go_by_published_rates_and_nothing_is_measured() -> None:
    unlike = choose_shares("auto", gpus("A100-80GB", "T4"))
    assert unlike.held
    assert unlike.split(100)[0] > 75
    assert unlike.measured([StepMeasure(50, 1.0), StepMeasure(50, 9.0)]) is unlike
    assert unlike.reason == (
        "by published FLOP/s and memory bandwidth of NVIDIA A100-SXM4-80GB, Tesla T4"
    )


def test_by_default_unknown_devices_among_unequal_ones_share_evenly_and_it_says_why() -> None:
    shares = choose_shares("auto", [*gpus("T4"), Device("cuda", 1, "Gpu X")])
    assert shares.held
    assert shares.split(10) == (5, 5)
    assert shares.reason == (
        'even: the devices differ, and the rates of Gpu X are unknown; shares="speed" measures '
        "them, or give a number per device"
    )


def test_by_default_devices_of_which_nothing_is_known_share_evenly() -> None:
    shares = choose_shares("auto", [torch.device("cuda", 0), gpus("A100-80GB")[0]])
    assert (shares.split(10), shares.reason) == ((5, 5), "even")


def test_memory_begins_evenly_if_a_size_is_unknown() -> None:
    sized = choose_shares("memory", gpus("A100-80GB", "A100-40GB"))
    assert sized.split(9) == (6, 3)
    assert choose_shares("memory", [*gpus("T4"), Device("cuda", 1, "Gpu X")]).split(10) == (5, 5)


def test_given_and_even_shares_stay_whatever_is_measured() -> None:
    for wanted in ("even", (3, 1)):
        shares = choose_shares(wanted, gpus("A100-80GB", "T4"))
        assert shares.held
        assert shares.measured([StepMeasure(1, 1.0), StepMeasure(1, 9.0)]) is shares


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


def test_weights_may_be_zero_but_not_without_end() -> None:
    assert Shares((0.0, 1.0), "").split(3) == (0, 3)
    with pytest.raises(SharesError, match="numbers from zero up; got 1, inf"):
        Shares((1.0, float("inf")), "")


def test_limits_and_samples_that_cannot_be() -> None:
    with pytest.raises(SharesError, match="1 limits for 2 shares"):
        Shares((1.0, 1.0), "", (3,))
    with pytest.raises(SharesError, match="a batch cannot have -1 samples"):
        Shares((1.0, 1.0), "").split(-1)
    assert Shares((1.0, 1.0), "").split(0) == (0, 0)


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
