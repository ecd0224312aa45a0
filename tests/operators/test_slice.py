"""Every eighth entry of PyTorch's operator database; `make test-operators` runs them all."""

import json
from pathlib import Path

import pytest
from exceptions import Exemption, judge, read_exceptions
from sweep import list_entries, read_outcomes, sweep

STEP = 16


def test_every_sixteenth_entry_passes_forward_and_backward() -> None:
    entries = list(enumerate(list_entries()))[::STEP]
    outcomes = sweep(
        "float32", entries, workers=1, most_samples=20, limit_seconds=60, folder="slice"
    )
    assert len(outcomes) == len(entries) > 40
    assert judge("float32", outcomes, read_exceptions()).failures == {}
    assert sum(outcome.get("backward", 0) for outcome in outcomes) > 250


def test_each_exception_has_a_reason() -> None:
    assert all(len(exception.reason) > 20 for exception in read_exceptions())


@pytest.mark.parametrize(
    ("status", "listed", "fine"),
    [
        ("passed", False, True),
        ("failed", False, False),
        ("failed", True, True),
        ("passed", True, False),  # exceptions.toml is out of date
        ("absent", False, True),
    ],
)
def test_what_may_fail(status: str, listed: bool, fine: bool) -> None:
    outcome = {"entry": "add", "status": status, "message": "differs"}
    exceptions = [Exemption("add", ("float32",), "because")] if listed else []
    assert judge("float32", [outcome], exceptions).fine is fine
    assert judge("int64", [outcome], exceptions).fine is (status != "failed")


def test_a_result_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    results = tmp_path / "float32.jsonl"
    results.write_text(json.dumps({"entry": "add", "status": "passed"}) + '\n{"entry": "mu')
    assert list(read_outcomes(results)) == ["add"]
