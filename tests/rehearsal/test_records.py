"""The critical path, the occupation and the trace of records that are written by hand."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anyrig.rehearsal.collective_times import collective_times
from anyrig.rehearsal.critical_path import Timeline
from anyrig.rehearsal.facts import CollectiveTimes, Facts, StepFacts, TypicalStep
from anyrig.rehearsal.occupation import occupation_of
from anyrig.rehearsal.process_record import ProcessRecord, merge_records
from anyrig.rehearsal.read_facts import read_facts
from anyrig.rehearsal.record_file import read_record_file, write_record
from anyrig.rehearsal.record_folder import RecordFolder
from anyrig.rehearsal.step_ends import StepEnd
from anyrig.rehearsal.summary import describe
from anyrig.rehearsal.trace import trace_events
from anyrig.rehearsal.used_device import UsedDevice
from anyrig.virtual.record_reading import (
    Cause,
    IntervalKind,
    MemoryCurve,
    MemorySample,
    Record,
    RecordedIntervals,
    RecordedTrack,
)
from anyrig.virtual.rig import VirtualRig

HOST, BACKWARD, GPU, SIDE = range(4)
TRACKS = (
    RecordedTrack(None, None, False),
    RecordedTrack(None, None, True),
    RecordedTrack(0, 0, False),
    RecordedTrack(0, 1, False),
)
SHARED_FLOW = (1 << 62) + 7
KINDS = {"parameters": 2**20, "gradients": 0, "optimizer": 0, "activations": 0, "other": 0}


def record_of(*intervals: tuple[Any, ...]) -> Record:
    """Return a record of intervals (track, begin, end, kind, cause, launch)."""
    columns: dict[str, list[Any]] = {name: [] for name in ("track", "begin", "end", "kind")}
    columns |= {"cause": [], "launch": []}
    for interval in intervals:
        for name, value in zip(columns, interval, strict=True):
            columns[name].append(value)
    count = len(intervals)
    whole = {name: array("q", column) for name, column in columns.items() if name[0] not in "be"}
    return Record(
        RecordedIntervals(
            complete_from=0.0,
            begin=array("d", columns["begin"]),
            end=array("d", columns["end"]),
            bytes=array("d", [-1.0] * count),
            flow=array("q", [-1] * count),
            name=array("q", range(count)),
            nodes=array("q", [0] * count),
            line=array("q", [-1] * count),
            module=array("q", [-1] * count),
            **whole,
        ),
        TRACKS,
        tuple(f"work {number}" for number in range(count)),
        (),
        (),
    )


def launch(begin: float, end: float, track: int = HOST) -> tuple[Any, ...]:
    return (track, begin, end, IntervalKind.HOST, Cause.NONE, -1)


def wait(begin: float, end: float) -> tuple[Any, ...]:
    return (HOST, begin, end, IntervalKind.WAIT, Cause.MOMENT, -1)


def work(track: int, begin: float, end: float, cause: Cause, by: int, kind: Any = None) -> Any:
    return (track, begin, end, IntervalKind.KERNEL if kind is None else kind, cause, by)


def path_of(record: Record, begin: float, end: float) -> list[tuple[int | None, float, float]]:
    pieces = Timeline(record).critical_path(begin, end)
    assert sum(piece.end - piece.begin for piece in pieces) == pytest.approx(end - begin)
    return [(piece.interval, piece.begin, piece.end) for piece in pieces]


def test_a_path_goes_over_a_copy_that_a_kernel_waits_for() -> None:
    record = record_of(
        launch(0, 1),
        work(SIDE, 1, 9, Cause.LAUNCH, 0, IntervalKind.COPY),
        launch(1, 2),
        work(GPU, 2, 4, Cause.LAUNCH, 2),
        launch(2, 3),
        work(GPU, 9, 12, Cause.MOMENT, 4),
    )
    assert path_of(record, 0, 12) == [(0, 0, 1), (1, 1, 9), (5, 9, 12)]
    assert path_of(record, 5, 12) == [(1, 5, 9), (5, 9, 12)]


def test_a_path_passes_over_a_wait_of_the_host() -> None:
    record = record_of(
        launch(0, 1),
        work(GPU, 1, 5, Cause.LAUNCH, 0),
        wait(1, 5),
        launch(5, 6),
        work(GPU, 6, 8, Cause.LAUNCH, 3),
    )
    assert path_of(record, 0, 8) == [(0, 0, 1), (1, 1, 5), (3, 5, 6), (4, 6, 8)]


def test_a_path_goes_through_the_threads_of_the_host() -> None:
    record = record_of(
        launch(0, 1),
        launch(1, 3, BACKWARD),
        work(GPU, 3, 4, Cause.LAUNCH, 1),
        launch(3, 5),
        work(GPU, 5, 6, Cause.LAUNCH, 3),
    )
    assert path_of(record, 0, 6) == [(0, 0, 1), (1, 1, 3), (3, 3, 5), (4, 5, 6)]


def test_a_launch_of_several_kernels_counts_until_the_first_can_start() -> None:
    record = record_of(launch(0, 5), work(GPU, 1, 7, Cause.LAUNCH, 0))
    assert path_of(record, 0, 7) == [(0, 0, 1), (1, 1, 7)]


def test_what_no_record_explains_is_time_of_the_host_or_of_another_process() -> None:
    collective = IntervalKind.COLLECTIVE
    record = record_of(launch(0, 1), launch(2, 3), work(GPU, 6, 8, Cause.MOMENT, 1, collective))
    assert path_of(record, 0, 8) == [(0, 0, 1), (None, 1, 2), (1, 2, 3), (None, 3, 6), (2, 6, 8)]
    pieces = Timeline(record).critical_path(0, 8)
    assert [piece.is_wait for piece in pieces] == [False, False, False, True, False]


def test_a_step_that_the_record_does_not_reach_has_no_path() -> None:
    record = record_of(launch(4, 5), work(GPU, 5, 6, Cause.LAUNCH, 0))
    late = replace(record, intervals=replace(record.intervals, complete_from=5.0))
    assert Timeline(late).critical_path(4, 6) == []


def test_what_a_device_does() -> None:
    record = record_of(
        launch(0, 1),
        work(GPU, 1, 4, Cause.LAUNCH, 0),
        launch(1, 2),
        work(SIDE, 4, 6, Cause.MOMENT, 2, IntervalKind.COPY),
        launch(8, 9),
        work(GPU, 9, 10, Cause.LAUNCH, 4),
    )
    found = occupation_of(record, 0, 0, 0.0, 10.0)
    assert found.busy == pytest.approx(0.4)
    assert found.waiting == pytest.approx(0.2)
    assert found.idle == pytest.approx(0.4)
    assert occupation_of(record, 0, 1, 0.0, 10.0).idle == 1


def test_work_that_was_launched_and_cannot_begin_makes_its_device_wait() -> None:
    # Launched at 1, but begins at 5, after something elsewhere.
    record = record_of(launch(0, 1), work(GPU, 5, 6, Cause.MOMENT, 0))
    found = occupation_of(record, 0, 0, 0.0, 10.0)
    assert (found.busy, found.waiting) == (pytest.approx(0.1), pytest.approx(0.4))


def test_collectives_in_a_node_and_across_nodes() -> None:
    kind = IntervalKind.COLLECTIVE
    record = record_of(
        work(SIDE, 0, 2, Cause.LAUNCH, -1, kind),  # begins before the steps
        work(GPU, 1, 4, Cause.LAUNCH, -1),
        work(SIDE, 3, 6, Cause.STREAM, -1, kind),
        work(SIDE, 6, 8, Cause.STREAM, -1, kind),
    )
    nodes = array("q", [1, 0, 1, 2])
    record = replace(record, intervals=replace(record.intervals, nodes=nodes))
    found = collective_times(record, 0, 0, 1.0, 9.0, steps=2)
    assert found == CollectiveTimes((1 + 3) / 2, 2 / 2, (2 + 2) / 2)
    assert collective_times(record, 0, 1, 1.0, 9.0, steps=2) is None
    about = Facts("train.py", (), "2x(T4)", True, "2", "1", collectives=found)
    step = StepFacts(1, False, 1.0, 5.0, None, 0, 0.0, ())
    about = replace(about, steps=(step,), typical_step=TypicalStep(4.0, None, (1,)))
    line = "collectives take 2.00 s in a node and 1.00 s across nodes; for 2.00 s no kernel runs"
    assert line in describe(about)


def test_steps_of_ranks_that_differ() -> None:
    about = Facts("train.py", (), "2xA100-80GB", False, "2.13.0", "0.1.0")
    quick, slow = two_ranks()
    waiting = record_of(launch(0, 1), wait(1, 2), launch(2, 3), wait(3, 4))
    quick = replace(
        quick,
        record=waiting,
        ends=(StepEnd(5.0, 2.5, None, 0.0), StepEnd(9.0, 4.0, None, 0.0)),
        devices=(),
    )
    slow = replace(slow, ends=(StepEnd(8.0, 2.0, 4, 0.0), StepEnd(12.0, 4.0, 4, 0.0)))
    facts = read_facts(about, VirtualRig.parse("2xA100-80GB"), [quick, slow])
    assert [step.end_seconds for step in facts.steps] == [8.0, 12.0]  # of the last rank
    assert [step.samples for step in facts.steps] == [None, None]  # one rank's are unknown
    assert [step.waits for step in facts.steps] == [1, 1]


def two_ranks() -> list[ProcessRecord]:
    """Two ranks whose all-reduce begins when the second one has computed."""
    collective = IntervalKind.COLLECTIVE
    quick = record_of(
        launch(0, 1),
        work(GPU, 1, 2, Cause.LAUNCH, 0),
        launch(1, 2),
        work(SIDE, 6, 8, Cause.MOMENT, 2, collective),
    )
    slow = record_of(
        launch(0, 1),
        work(GPU, 1, 6, Cause.LAUNCH, 0),
        launch(1, 2),
        work(SIDE, 6, 8, Cause.MOMENT, 2, collective),
    )
    sample = MemorySample(1.0, 2**20, 2**10, 2**19, 2**25, 0, 0)
    processes = []
    for rank, record in enumerate((quick, slow)):
        flow = array("q", [-1, -1, -1, SHARED_FLOW])
        record = replace(record, intervals=replace(record.intervals, flow=flow))
        devices = (UsedDevice(0, "A100-80GB", 85 * 10**9, MemoryCurve(sample, (sample,), KINDS)),)
        ends = (StepEnd(8.0, 2.0, 4, 0.5),)
        processes.append(ProcessRecord(rank, record, 0.0, 0.0, ends, devices))
    return processes


def test_the_critical_path_goes_to_the_last_rank_of_a_collective() -> None:
    record = merge_records(two_ranks())
    assert [track.rank for track in record.tracks] == [0] * 4 + [1] * 4
    assert path_of(record, 0, 8) == [(4, 0, 1), (5, 1, 6), (3, 6, 8)]


def test_the_facts_of_two_ranks(tmp_path: Path) -> None:
    about = Facts("train.py", (), "2xA100-80GB", False, "2.13.0", "0.1.0")
    facts = read_facts(about, VirtualRig.parse("2xA100-80GB"), two_ranks())
    (step,) = facts.steps
    assert (step.samples, step.seconds, step.loader_wall_seconds) == (8, 8.0, 0.5)
    assert [(device.rank, device.busy_share) for device in facts.devices] == [
        (0, 1 / 8),
        (1, 5 / 8),
    ]
    assert len({flow for flow in facts.intervals.flow if flow >= 0}) == 1
    assert facts.peak_bytes(0, rank=1) == facts.devices[1].peak.total_bytes > 0
    assert "rank 1, busy 62 %" in describe(facts)
    assert [memory.kinds_at_peak for memory in facts.memory] == [KINDS, KINDS]
    assert "rank 1, tensors at the peak: parameters 1.00 MiB" in describe(facts)
    written = json.loads(json.dumps(facts.as_json()))
    assert written["tracks"][4]["title"] == "rank 1 host"
    events = list(trace_events(facts))
    assert [event["ph"] for event in events if event.get("id") == 0] == ["s", "f"]
    spans = [event for event in events if event["ph"] == "X" and event["cat"] == "kernel"]
    assert [(span["pid"], span["dur"]) for span in spans] == [(0, 1e6), (1, 5e6)]


def test_records_go_through_the_folder_of_their_rehearsal() -> None:
    with RecordFolder.shared() as folder:
        for process in two_ranks():
            folder.write(process)
        assert folder.read_all() == two_ranks()
        folder.path.chmod(0o755)
        folder.write(replace(two_ranks()[0], rank=5))
        assert len(folder.read_all()) == 2
    folder.write(two_ranks()[0])
    assert not folder.path.exists()


def test_the_next_rehearsal_removes_the_records_of_a_killed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = os.fork()
    if not child:
        with RecordFolder.shared() as folder:
            folder.write(two_ranks()[0])
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (killed,) = tmp_path.iterdir()
    assert len([*killed.iterdir()]) == 1
    with RecordFolder.shared() as running, RecordFolder.shared() as other:
        assert {*tmp_path.iterdir()} == {running.path, other.path}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    process = two_ranks()[1]
    write_record(tmp_path / "record", process)
    assert read_record_file(tmp_path / "record") == process


def test_a_launch_before_the_moments_looked_at_is_cut_off() -> None:
    record = record_of(launch(0, 1), work(GPU, 6, 8, Cause.MOMENT, 0))
    found = occupation_of(record, 0, 0, 5.0, 10.0)
    assert found.idle >= 0
    shares = [value for value in vars(found).values() if isinstance(value, float)]
    assert sum(shares) == pytest.approx(1)


def test_of_two_records_of_a_rank_the_later_counts(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir(mode=0o700)
    later, earlier = two_ranks()
    for seconds, name, record in (
        (100, "0-9999.record", replace(earlier, rank=later.rank)),
        (200, "0-310.record", later),
    ):
        write_record(folder / name, record)
        os.utime(folder / name, (seconds, seconds))
    assert RecordFolder(folder).read_all() == [later]
