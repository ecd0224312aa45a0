"""When the runs of a script cannot be compared, and which types they have."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from anyrig.verification.channel import VARIABLE, Channel
from anyrig.verification.records import LoadedBatch, RankRecord, StepRecord
from anyrig.verification.script_runs import Ended, ScriptRuns
from forked_programs import run_forked


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


def test_both_runs_are_repeated_in_the_types_of_the_script() -> None:
    found: list[bool] = []

    def start() -> Ended:
        channel = Channel(**json.loads(os.environ[VARIABLE]))
        found.append(channel.widens)
        if channel.widens:
            return Ended(1, "RuntimeError: expected scalar type Double but found Float")
        channel.write_record(RankRecord(0, 1, ()))
        return Ended(0)

    ScriptRuns(start, start, steps=3).verify()
    assert found == [True, False, False]


def test_a_script_that_needs_several_ranks_is_told_how_to_run_alone() -> None:
    def on_rig() -> Ended:
        Channel(**json.loads(os.environ[VARIABLE])).write_record(RankRecord(0, 2, ()))
        return Ended(0)

    verdict = ScriptRuns(on_rig, lambda: Ended(1, "ValueError: 2 stages"), steps=3).verify()
    assert verdict.exit_code == 2
    assert "fails on one device" in verdict.reason
    assert "--single-arguments" in verdict.reason


def leave(rank: int, steps: int, *batches: LoadedBatch) -> None:
    """Write the record of a rank with some steps."""
    each = StepRecord({}, {}, {})
    record = RankRecord(rank, 2, (each,) * steps, batches=batches)
    channel = Channel(**json.loads(os.environ[VARIABLE]))
    channel.write_record(record)
    file = Path(channel.folder, f"{rank}-{os.getpid()}.rank")
    file.rename(file.with_name(f"{rank}-{rank}.rank"))  # every rank has a process of its own


def test_another_number_of_ranks_than_expected_is_named() -> None:
    def on_rig() -> Ended:
        leave(0, 3)
        return Ended(0)

    verdict = ScriptRuns(on_rig, on_rig, steps=3, expected_ranks=2).verify()
    assert verdict.exit_code == 2
    assert "1 ranks made steps on the rig, and 2 were expected" in str(verdict.reason)


def test_batches_that_cannot_be_put_together_are_a_verdict_on_all_ranks() -> None:
    def on_rig() -> Ended:
        for rank in range(2):
            leave(rank, 3, LoadedBatch(0, 0, 0, torch.zeros(2, rank + 1)))
        return Ended(0)

    verdict = ScriptRuns(on_rig, on_rig, steps=3).verify()
    assert (verdict.exit_code, verdict.world_size) == (2, 2)
    assert "batches of the shapes (2, 1), (2, 2)" in str(verdict.reason)


@pytest.mark.parametrize(("steps", "fails"), [(3, False), (2, True)])
def test_a_script_that_fails_after_its_steps_is_compared(steps: int, fails: bool) -> None:
    def run() -> Ended:
        leave(0, steps)
        return Ended(1, "\n".join(f"line {number}" for number in range(30)))

    reason = str(ScriptRuns(run, run, steps=3).verify().reason)
    assert ("the script fails on the rig, with status 1" in reason) is fails
    if fails:
        assert "run it with anyrig rehearse first\nline 5\n" in reason
        assert reason.endswith("line 29")


def test_a_verdict_in_the_own_types_of_the_script_says_so() -> None:
    def run() -> Ended:
        if json.loads(os.environ[VARIABLE])["widens"]:
            return Ended(1, "RuntimeError: expected scalar type Double but found Float")
        leave(0, 3)
        return Ended(0)

    notes = ScriptRuns(run, run, steps=3).verify().notes
    assert notes[:1] == ("the script does not run in float64, so it ran in its own types",)


def test_the_channel_restores_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Channel(str(tmp_path), steps=3, widens=True)
    monkeypatch.setenv(VARIABLE, "before")
    with channel.open():
        assert Channel(**json.loads(os.environ[VARIABLE])) == channel
    assert os.environ[VARIABLE] == "before"
    assert channel.read_replay() is None


def test_of_a_restarted_rank_the_last_record_counts(tmp_path: Path) -> None:
    channel = Channel(str(tmp_path), steps=3, widens=True)
    for attempt, process in enumerate((8, 7)):
        channel.write_record(RankRecord(0, 1, (), dtypes=(f"of attempt {attempt}",)))
        (file,) = tmp_path.glob(f"0-{os.getpid()}.*")
        os.utime(file.rename(tmp_path / f"0-{process}.rank"), ns=(attempt, attempt))
    assert [record.dtypes for record in channel.read_records()] == [("of attempt 1",)]


SEEDED = """
import random, torch
from anyrig.verification.channel import record_this_process

record_this_process()
print(torch.initial_seed(), random.random())
"""


def test_the_random_numbers_of_a_rank_are_seeded_with_it(tmp_path: Path) -> None:
    channel = json.dumps(asdict(Channel(str(tmp_path), steps=1, widens=False)))
    done = run_forked("-c", SEEDED, RANK="3", LOCAL_RANK="1", **{VARIABLE: channel})
    assert done.stdout.split() == ["3", str(random.Random(3).random())], done.stderr


LOADED = """
import torch
from torch.utils.data import DataLoader
from anyrig.verification.channel import record_this_process

record_this_process()
(batch,) = DataLoader(torch.zeros(2, dtype=torch.float32), batch_size=2)
print(batch.dtype, torch.get_default_dtype())
"""


@pytest.mark.parametrize(("widens", "dtype"), [(False, "torch.float32"), (True, "torch.float64")])
def test_a_run_in_the_own_types_of_the_script_keeps_its_batches(
    widens: bool, dtype: str, tmp_path: Path
) -> None:
    channel = json.dumps(asdict(Channel(str(tmp_path), steps=1, widens=widens)))
    done = run_forked("-c", LOADED, **{VARIABLE: channel})
    assert done.stdout.split() == [dtype, dtype], done.stderr
