import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyrig.units import (
    format_bytes,
    format_count,
    format_rate,
    format_span,
    parse_bytes,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "?"),
        (0, "0 B"),
        (1023, "1023 B"),
        (-1023, "-1023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**29, "1.50 GiB"),
        (-(2**20), "-1.00 MiB"),
        (2**20 - 1, "1024.00 KiB"),
        (2**20, "1.00 MiB"),
        (2**30, "1.00 GiB"),
        (2**40, "1.00 TiB"),
        (2**50, "1024.00 TiB"),
    ],
)
def test_format(count: int | None, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1.6408, "1.64"), (0.0312, "0.0312"), (99.4, "99.4"), (100, "100"), (1234.5, "1,234")],
)
def test_rates_have_three_digits(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096),
        ("7B", 7),
        (" 2 kB ", 2000),
        ("2KB", 2000),
        ("3MB", 3_000_000),
        ("1.5 GB", 1_500_000_000),
        ("1TB", 10**12),
        ("2KiB", 2048),
        ("3MiB", 3 * 2**20),
        ("16GiB", 2**34),
        ("1TiB", 2**40),
        ("1 gib", 2**30),
        ("24gb", 24 * 10**9),
    ],
)
def test_parse(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 gi", "16 G", "1e9", "1_000"])
def test_unreadable(text: str) -> None:
    with pytest.raises(ValueError, match=f"cannot read {text!r} as a number of bytes"):
        parse_bytes(text)


def test_no_memory_has_more_bytes_than_a_float_can_count() -> None:
    with pytest.raises(ValueError, match="more than 300 digits; write a smaller one"):
        parse_bytes("9" * 400)
    with pytest.raises(ValueError, match=r"one of B, KiB, MiB, .*kB, KB, MB, GB, TB$"):
        parse_bytes("5 bits")


@pytest.mark.parametrize(("count", "text"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks")])
def test_a_count_stands_before_its_noun(count: int, text: str) -> None:
    assert format_count(count, "rank") == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (5.204, 6.809, "5.2 and 6.81 s"),
        (0.9, 1.2, "0.9 and 1.2 s"),
        (0.0803, 0.0981, "80.3 and 98.1 ms"),
        (4e-7, 9e-7, "0.4 and 0.9 us"),
        (800.0, 1234.5, "800 and 1,234 s"),
    ],
)
def test_a_span_has_one_unit(low: float, high: float, text: str) -> None:
    assert format_span(low, high) == text


@given(st.integers(min_value=0, max_value=2**60))
def test_what_is_formatted_can_be_parsed(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("4.5us", 4.5e-6), (" 8 us ", 8e-6), ("900ns", 9e-7), ("0.01ms", 1e-5), ("2s", 2.0)],
)
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "us", "-1us", "0us", "5 min", "nan", "1e-6s"])
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(ValueError, match="as a time; write a number above zero and one of ns, us"):
        parse_seconds(text)
