"""What varies, from its text to the words and variables of a script."""

from __future__ import annotations

import json

import pytest

import anyrig
from anyrig.errors import PlanningError
from anyrig.planning.fit_value import VARIABLE
from anyrig.planning.variation import Variation


def test_a_flag_varies() -> None:
    varies = Variation.parse("--batch-size=1..512")
    assert varies == Variation("--batch-size", 1, 512)
    assert varies.words(8) == ("--batch-size=8",)
    assert varies.environment(8) == {}
    assert varies.describe(8) == "--batch-size=8"
    assert varies.is_batch
    assert Variation.parse("-b=1..4").words(3) == ("-b", "3")
    assert not Variation.parse("--seq-len=1..4").is_batch


def test_a_variable_and_a_named_value_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    varies = Variation.parse("batch=1..512")
    assert varies.words(8) == ()
    assert varies.environment(8) == {"batch": "8", VARIABLE: json.dumps({"batch": 8})}
    assert anyrig.fit_value("batch", 32) == 32  # outside of fit
    monkeypatch.setenv(VARIABLE, varies.environment(8)[VARIABLE])
    assert anyrig.fit_value("batch", 32) == 8
    assert anyrig.fit_value("other", 32) == 32
    for odd in ("[1]", "8", "{"):
        monkeypatch.setenv(VARIABLE, odd)
        with pytest.raises(PlanningError, match=f"{VARIABLE} is .* and must be a JSON object"):
            anyrig.fit_value("batch", 32)


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
