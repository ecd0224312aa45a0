import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyrig import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "?"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**29, "1.50 GiB"),
        (-(2**20), "-1.00 MiB"),
        (2**50, "1024.00 TiB"),
    ],
)
def test_format(count: int | None, text: str) -> None:
    assert format_bytes(count) == text


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


@given(st.integers(min_value=0, max_value=2**60))
def test_what_is_formatted_can_be_parsed(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.01)
