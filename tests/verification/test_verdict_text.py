"""A verdict as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from anyrig.verification import Verdict
from anyrig.verification.verdict import Cause, Finding

CAUSE = Cause("factor", "what happened", "what to change")
FINDING = Finding(CAUSE, "gradient", "a.weight", "Linear", "train.py:5", "train.py:9", 2, 0.256, 3)
VERDICT = Verdict(1, FINDING, None, 2, 4, "float64", 1e-9, ((1.0, None),), ("a note", "another"))


def test_a_difference_is_described() -> None:
    assert str(VERDICT).splitlines() == [
        "anyrig verify: not the same on the rig and on one device",
        "  step 2: gradient a.weight of Linear, train.py:5, backward in train.py:9",
        "    differs by 0.26 of its norm, as do 3 other tensors",
        "    what happened",
        "    change: what to change",
        "  compared: 2 steps of 4 ranks, in float64; differences up to 1e-09 of a tensor's norm "
        "per step count as rounding",
        "  note: a note",
        "  note: another",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"others": 1}, "    differs by 0.26 of its norm, as does 1 other tensor"),
        ({"others": 0}, "    differs by 0.26 of its norm"),
        ({"module": None}, "  step 2: gradient a.weight, train.py:5, backward in train.py:9"),
        ({"line": None}, "  step 2: gradient a.weight of Linear, backward in train.py:9"),
        ({"backward_line": None}, "  step 2: gradient a.weight of Linear, train.py:5"),
        ({"cause": replace(CAUSE, is_certain=False)}, "    probably: what happened"),
    ],
)
def test_what_is_unknown_is_left_out(changes: dict[str, object], line: str) -> None:
    text = str(replace(VERDICT, finding=replace(FINDING, **changes)))  # type: ignore[arg-type]
    assert line in text.splitlines()


def test_agreement_that_tells_nothing_has_a_head_of_its_own() -> None:
    text = str(replace(VERDICT, finding=Finding(CAUSE)))
    assert text.splitlines()[:3] == [
        "anyrig verify: the same on the rig and on one device, and wrong on both, or wasteful",
        "    what happened",
        "    change: what to change",
    ]


def test_runs_that_are_the_same_and_runs_that_cannot_be_compared() -> None:
    assert str(Verdict(0, steps=1, world_size=1, dtype="float32", bound=1e-4)).splitlines() == [
        "anyrig verify: the same on the rig and on one device",
        "  compared: 1 step of one process, in float32; differences up to 1e-04 of a tensor's norm "
        "per step count as rounding",
    ]
    for steps, ranks, compared in [
        (3, 1, "3 steps of one process"),
        (1, 2, "1 step of 2 ranks"),
    ]:
        text = str(Verdict(0, steps=steps, world_size=ranks, dtype="float32", bound=1e-4))
        assert f"  compared: {compared}, in float32; " in text
    assert str(Verdict(2, reason="why")) == "anyrig verify: could not be compared\n  why"


@pytest.mark.parametrize(("exit_code", "is_same"), [(0, True), (1, False), (2, False)])
def test_only_the_same_is_true(exit_code: int, is_same: bool) -> None:
    assert bool(Verdict(exit_code)) is is_same


def test_json_has_all_facts() -> None:
    facts = json.loads(json.dumps(VERDICT.as_json()))
    finding = facts.pop("finding")
    assert facts == {
        "exit_code": 1,
        "reason": None,
        "steps": 2,
        "world_size": 4,
        "dtype": "float64",
        "bound": 1e-9,
        "losses": [[1.0, None]],
        "notes": ["a note", "another"],
    }
    assert finding["cause"]["code"] == "factor"
    assert finding["cause"]["is_certain"] is True
    assert (finding["line"], finding["backward_line"]) == ("train.py:5", "train.py:9")
