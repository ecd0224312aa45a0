"""Shares: whole samples for every device, by weights and limits, and what they begin with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gpus_of_specs import gpus
from hypothesis import given
from hypothesis import strategies as st

from anyrig.devices import Device
from anyrig.errors import SharesError
from anyrig.parallel.shares.shares import Shares, choose_shares
from anyrig.parallel.shares.trial import StepMeasure

WEIGHTS = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.integers(1, 10).map(float)),
    min_size=1,
    max_size=9,
).filter(any)


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
