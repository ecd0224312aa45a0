"""When the runs of a script cannot be compared, and which types they have."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from anyrig.verification.channel import VARIABLE
from anyrig.verification.script_runs import Ended, ScriptRuns


def widths(ended: Iterator[Ended]) -> tuple[list[bool], ScriptRuns]:
    """Return whether each run was in float64, and runs that end as given."""
    found: list[bool] = []

    def start() -> Ended:
        found.append(json.loads(os.environ[VARIABLE])["widens"])
        return next(ended)

    return found, ScriptRuns(start, start, steps=3)


@pytest.mark.parametrize(
    ("ended", "in_float64", "reason"),
    [
        ([Ended(1, "ValueError: no file")], [True], "the script fails on the rig, with status 1"),
        (
            [Ended(1, "RuntimeError: expected scalar type Double but found Float"), Ended(7, "x")],
            [True, False],
            "the script fails on the rig, with status 7",
        ),
        ([Ended(0)], [True], "no optimizer's step was seen on the rig"),
    ],
    ids=["fails", "fails in both types", "makes no steps"],
)
def test_runs_that_cannot_be_compared(
    ended: list[Ended], in_float64: list[bool], reason: str
) -> None:
    found, runs = widths(iter(ended))
    verdict = runs.verify()
    assert (verdict.exit_code, found) == (2, in_float64)
    assert reason in str(verdict)
    assert VARIABLE not in os.environ
