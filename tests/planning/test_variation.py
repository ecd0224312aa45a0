"""What varies, from its text to the words and variables of a script."""

from __future__ import annotations

import json

import pytest

import anyrig
from anyrig.errors import PlanningError
from anyrig.planning.fit_value import VARIABLE
from anyrig.planning.variation import Setting, Variation, environment_of


def test_a_flag_varies() -> None:
    varies = Variation.parse("--batch-size=1..512")
    assert varies == Variation("--batch-size", 1, 512)
    assert Setting(varies, 8).words == ("--batch-size=8",)
    assert environment_of([Setting(varies, 8)]) == {}
    assert varies.describe(8) == "--batch-size=8"
    assert varies.is_batch
    assert Setting(Variation.parse("-b=1..4"), 3).words == ("-b", "3")
    assert Variation.parse("--num-sequences=1..4").is_batch
    assert not Variation.parse("--sequence-length=1..4").is_batch


def test_a_variable_and_a_named_value_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    varies = Variation.parse("batch=1..512")
    other = Variation.parse("LENGTH=1..512")
    assert Setting(varies, 8).words == ()
    environment = environment_of([Setting(other, 64), Setting(varies, 8)])
    values = {"LENGTH": 64, "batch": 8}
    assert environment == {"LENGTH": "64", "batch": "8", VARIABLE: json.dumps(values)}
    assert anyrig.fit_value("batch", 32) == 32  # outside of fit
    monkeypatch.setenv(VARIABLE, environment[VARIABLE])
    assert (anyrig.fit_value("batch", 32), anyrig.fit_value("LENGTH", 32)) == (8, 64)
    assert anyrig.fit_value("other", 32) == 32
    for odd in ("[1]", "8", "{"):
        monkeypatch.setenv(VARIABLE, odd)
        with pytest.raises(PlanningError, match=f"{VARIABLE} is .* and must be a JSON object"):
            anyrig.fit_value("batch", 32)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("n=512..4096", (512, 1024, 2048, 4096)),
        ("n=3..20", (3, 6, 12, 20)),
        ("n=7..7", (7,)),
    ],
)
def test_values_double_from_the_first_to_the_last(text: str, values: tuple[int, ...]) -> None:
    assert Variation.parse(text).doublings == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--batch-size=512..1", "is reversed; write --batch-size=1..512"),
        ("--batch-size=0..4", r"begins below 1; write --batch-size=1..4"),
        ("--batch-size=", "the range is empty of whole numbers for '--batch-size'"),
        ("--batch-size=8", "'8' is not a range of whole numbers for '--batch-size'"),
        ("--batch-size=1..2.5", "'1..2.5' is not a range"),
        ("--batch-size=1..", r"'1\.\.' is not a range"),
        ("--batch-size=-4..4", "'-4..4' is not a range"),
        ("--batch-size=²..4", "is not a range"),
        ("--batch-size=1..9999999999999", "is not a range"),
        ("1..512", "'1..512' does not name what varies; write --vary --batch-size=1..512"),
        ("=1..512", "does not name what varies"),
        ("---a=1..512", "does not name what varies"),
        ("a b=1..512", "does not name what varies"),
        ("x" * 100, "'x{60}…' does not name what varies"),
    ],
)
def test_odd_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(PlanningError, match=message):
        Variation.parse(text)
