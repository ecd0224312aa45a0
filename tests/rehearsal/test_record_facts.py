"""The steps, rates, waits, paths and tracks in the facts of records that are written by hand."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from test_records import (
    BACKWARD,
    GPU,
    HOST,
    SIDE,
    launch,
    path_of,
    record_of,
    two_ranks,
    wait,
    work,
)

from anyrig.rehearsal.critical_path import Piece
from anyrig.rehearsal.facts import Facts, Intervals, MemoryFacts, StepFacts, Track
from anyrig.rehearsal.occupation import Occupation, occupation_of, union_seconds
from anyrig.rehearsal.process_record import ProcessRecord, merge_records
from anyrig.rehearsal.read_facts import read_facts
from anyrig.rehearsal.record_facts import RecordTexts, read_record_facts
from anyrig.rehearsal.step_ends import StepEnd
from anyrig.rehearsal.trace import trace_events
from anyrig.rehearsal.unused_gpus import find_unused
from anyrig.rehearsal.used_device import UsedDevice
from anyrig.virtual.record_reading import (
    Cause,
    IntervalKind,
    MemoryCurve,
    MemorySample,
    Record,
    RecordedTrack,
)
from anyrig.virtual.rig import VirtualRig

ABOUT = Facts("train.py", (), "T4", False, "2.13.0", "0.1.0")
EMPTY = record_of()


def process(*ends: StepEnd, record: Record = EMPTY, rank: int = 0) -> ProcessRecord:
    return ProcessRecord(rank, record, 0.0, 0.0, ends, ())


def facts_of(*processes: ProcessRecord, **options: Any) -> Facts:
    return read_record_facts(
        ABOUT,
        merge_records(processes),
        processes,
        path_reader=lambda record, texts: lambda begin, end: (),
        **options,
    )


def ends_of(*steps: tuple[float, int | None]) -> tuple[StepEnd, ...]:
    return tuple(StepEnd(end, end, samples, 0.0) for end, samples in steps)


def test_the_typical_step_is_the_median_of_those_after_the_first_ones() -> None:
    steps = ends_of((9.0, 8), (10.0, 8), (11.0, 16), (12.02, 8))
    typical = facts_of(process(*steps)).typical_step
    assert typical is not None
    assert typical.of_steps == (2, 3, 4)
    assert typical.seconds == pytest.approx(1.0)
    assert typical.samples_per_second == pytest.approx(8.0)
    only = facts_of(process(*steps[:1])).typical_step
    assert only is not None
    assert (only.seconds, only.samples_per_second, only.of_steps) == (9.0, 8 / 9, (1,))
    assert facts_of(process()).typical_step is None


def typical_numbers(*seconds: float) -> tuple[int, ...]:
    ends = accumulate((9.0, *seconds))
    typical = facts_of(process(*ends_of(*((end, 8) for end in ends)))).typical_step
    assert typical is not None
    return typical.of_steps


def test_steps_that_evaluate_or_save_are_not_typical() -> None:
    assert typical_numbers(1.0, 1.0, 3.0, 1.0, 1.5, 0.75) == (5, 6, 7)
    assert typical_numbers(1.0, 1.0, 1.0, 3.0, 1.0, 1.0) == (2, 3, 4)
    assert typical_numbers(1.0, 1.0, 3.0, 1.0, 1.0) == (5, 6)
    assert typical_numbers(1.0, 1.0, 1.0, 0.25) == (2, 3, 4)
    assert typical_numbers(1.0, 1.0, 3.0) == (2, 3)
    assert typical_numbers(1.0, 2.0, 0.5, 1.0) == (2, 3, 4, 5)


def test_of_steps_that_differ_by_nature_all_are_typical() -> None:
    assert typical_numbers(1.0, 3.0, 1.0, 3.0, 1.0) == (2, 3, 4, 5, 6)
    assert typical_numbers(1.0, 3.0) == (2, 3)


def test_the_busy_share_is_that_of_typical_steps() -> None:
    kernels = [work(GPU, begin, begin + 0.5, Cause.LAUNCH, -1) for begin in (9.0, 10.0)]
    curve = MemoryCurve(MemorySample(0.0, 0, 0, 0, 0, 0, 0), (), {})
    ends = ends_of((9.0, 8), (10.0, 8), (11.0, 8), (14.0, 8))
    run = replace(
        process(*ends, record=record_of(*kernels)), devices=(UsedDevice(0, "T4", 1000, curve),)
    )
    assert facts_of(run).devices[0].busy_share == pytest.approx(0.5)


def test_of_steps_whose_samples_are_not_all_known_there_is_no_rate() -> None:
    typical = facts_of(process(*ends_of((9.0, 8), (10.0, None), (11.0, 8)))).typical_step
    assert typical is not None
    assert typical.samples_per_second is None


def test_of_batches_that_are_loaded_ahead_there_is_a_rate() -> None:
    ahead = process(*ends_of((9.0, 16), (10.0, 8), (11.0, 8), (12.0, None)))
    facts = facts_of(ahead)
    assert [step.samples for step in facts.steps] == [8, 8, 8, 8]
    assert facts.typical_step is not None
    assert facts.typical_step.samples_per_second == pytest.approx(8.0)


def test_each_process_stands_for_the_ranks_that_are_alike() -> None:
    facts = facts_of(process(*ends_of((9.0, 8), (10.0, None))), alike=4, first_step=2)
    assert [(step.number, step.samples) for step in facts.steps] == [(2, 32), (3, None)]


def test_the_slowest_loader_and_the_most_waits_of_all_ranks_count() -> None:
    waiting = record_of(wait(1, 2), wait(3, 4), wait(6, 7))
    quick = process(StepEnd(5.0, 5.0, 1, 0.75), StepEnd(9.0, 9.0, 1, 0.0), record=waiting)
    slow = process(StepEnd(5.0, 5.0, 1, 0.5), StepEnd(9.0, 9.0, 1, 0.25), rank=1)
    facts = facts_of(quick, slow)
    assert [step.loader_wall_seconds for step in facts.steps] == [0.75, 0.25]
    assert [step.waits for step in facts.steps] == [2, 1]


def test_a_wait_after_the_optimizers_step_counts_in_the_next_step_if_there_is_one() -> None:
    record = record_of(wait(1, 2), wait(6, 7))
    one = facts_of(process(StepEnd(5.0, 5.0, None, 0.0), record=record))
    assert [step.waits for step in one.steps] == [2]
    two = facts_of(process(*ends_of((5.0, None), (8.0, None)), record=record))
    assert [step.waits for step in two.steps] == [1, 1]


def named(record: Record, **columns: list[int]) -> Record:
    intervals = replace(
        record.intervals, **{name: array("q", column) for name, column in columns.items()}
    )
    return replace(
        record,
        intervals=intervals,
        names=("mm", "add"),
        modules=("up", "down"),
        lines=(("/a/train.py", 3), ("/a/train.py", 4)),
    )


def test_neighbours_of_one_kind_module_and_line_are_one_piece_of_a_path() -> None:
    begin = {"cause": Cause.LAUNCH, "by": -1}
    record = named(
        record_of(
            work(GPU, 0, 1, **begin),
            work(SIDE, 1, 3, **begin),
            work(SIDE, 3, 4, **begin),
            work(SIDE, 4, 5, **begin),
        ),
        name=[0, 1, 1, 1], module=[0, 0, 1, 1], line=[0, 0, 0, 1],
    )  # fmt: skip
    texts = RecordTexts(record)
    pieces = [Piece(float(n), end, n) for n, end in enumerate((1.0, 3.0, 4.0, 5.0))]
    pieces[1], pieces[2], pieces[3] = Piece(1, 3, 1), Piece(3, 4, 2), Piece(4, 5, 3)
    path = texts.path(record, [*pieces, Piece(5, 6, None), Piece(6, 8, None, is_wait=True)])
    all_texts = texts.all()

    def text(number: int | None) -> str | None:
        return None if number is None else all_texts[number]

    assert [
        (one.kind, one.seconds, one.track, text(one.name), text(one.module), text(one.line))
        for one in path
    ] == [
        ("kernel", 3.0, None, None, "up", "train.py:3"),  # on two tracks, of two operators
        ("kernel", 1.0, SIDE, "add", "down", "train.py:3"),
        ("kernel", 1.0, SIDE, "add", "down", "train.py:4"),
        ("host", 1.0, None, None, None, None),
        ("wait", 2.0, None, None, None, None),
    ]


def test_intervals_are_in_the_order_in_which_they_begin() -> None:
    record = named(
        record_of(work(GPU, 2, 5, Cause.LAUNCH, 1), launch(0, 1)),
        name=[0, -1], module=[1, -1], line=[1, -1],
    )  # fmt: skip
    texts = RecordTexts(record)
    found, all_texts = texts.intervals(record), texts.all()
    assert [*found.begin_seconds] == [0.0, 2.0]
    assert [*found.seconds] == [1.0, 3.0]
    assert [*found.track] == [HOST, GPU]
    assert [all_texts[kind] for kind in found.kind] == ["host", "kernel"]
    assert [found.name[0], found.module[0], found.line[0]] == [-1] * 3
    assert all_texts[found.name[1]] == "mm"
    assert all_texts[found.module[1]] == "down"
    assert all_texts[found.line[1]] == "train.py:4"


def test_tracks_are_numbered_in_each_rank() -> None:
    tracks = (
        RecordedTrack(None, None, False),
        RecordedTrack(None, None, True),
        RecordedTrack(None, None, False, thread=7),
        RecordedTrack(None, None, False, thread=9),
        RecordedTrack(1, 20, False),
    )
    one = process(record=replace(EMPTY, tracks=tracks))
    titles = ["host", "host, backward 1", "host, thread 1", "host, thread 2"]
    assert [track.title for track in facts_of(one).tracks] == [
        *(f"rank 0 {title}" for title in titles),
        "cuda:1 stream 20",
    ]
    both = facts_of(one, replace(one, rank=1)).tracks
    assert [(track.title, track.rank, track.device, track.stream) for track in both[4:]] == [
        ("rank 0 cuda:1 stream 20", 0, 1, 20),
        *((f"rank 1 {title}", 1, None, None) for title in titles),
        ("rank 1 cuda:1 stream 20", 1, 1, 20),
    ]


def test_without_timelines_there_are_no_intervals_and_no_paths() -> None:
    rig = VirtualRig.parse("2xA100-80GB")
    facts = read_facts(ABOUT, rig, two_ranks(), with_timelines=False)
    assert facts.intervals == Intervals()
    assert [step.path for step in facts.steps] == [()]
    assert facts.typical_step is not None


def test_a_path_prefers_the_work_of_its_own_rank_and_of_a_device() -> None:
    own = record_of(
        launch(0, 3, BACKWARD),  # ends when the kernel does
        work(GPU, 1, 3, Cause.LAUNCH, -1),
        work(SIDE, 3, 5, Cause.MOMENT, -1),
    )
    assert path_of(own, 1, 5) == [(1, 1, 3), (2, 3, 5)]
    waiting = record_of(launch(0, 3), work(SIDE, 3, 5, Cause.MOMENT, -1))
    other = record_of(work(GPU, 1, 3, Cause.LAUNCH, -1))
    merged = merge_records([process(record=waiting), process(record=other, rank=1)])
    assert path_of(merged, 1, 5) == [(0, 1, 3), (1, 3, 5)]


def test_a_record_that_begins_with_the_step_has_its_path() -> None:
    record = record_of(launch(4, 5), work(GPU, 5, 6, Cause.LAUNCH, 0))
    record = replace(record, intervals=replace(record.intervals, complete_from=4.0))
    assert path_of(record, 4, 6) == [(0, 4, 5), (1, 5, 6)]


def test_the_merged_record_is_complete_from_the_last_beginning_on() -> None:
    first, second = (
        replace(EMPTY, intervals=replace(EMPTY.intervals, complete_from=moment))
        for moment in (2.0, 3.0)
    )
    merged = merge_records([process(record=first), process(record=second, rank=1)])
    assert merged.intervals.complete_from == 3.0


def test_flows_of_different_processes_differ_unless_they_are_shared() -> None:
    def with_flows(*flows: int) -> Record:
        record = record_of(*(launch(0, 1) for _ in flows))
        return replace(record, intervals=replace(record.intervals, flow=array("q", flows)))

    shared = 1 << 62
    records = [with_flows(-1, 5, 5, shared), with_flows(5, shared, shared + 1)]
    merged = merge_records([process(record=one, rank=i) for i, one in enumerate(records)])
    assert [*merged.intervals.flow] == [-1, 0, 0, 1, 2, 1, 3]


def test_what_a_device_does_in_no_time_and_in_a_collective() -> None:
    record = record_of(work(GPU, 1, 3, Cause.LAUNCH, -1, IntervalKind.COLLECTIVE))
    assert occupation_of(record, 0, 0, 2.0, 2.0) == Occupation(0.0, 0.0, 1.0)
    assert occupation_of(record, 0, 0, 0.0, 4.0) == Occupation(0.0, 0.5, 0.5)
    assert union_seconds([(0, 2), (1, 3), (5, 6), (5, 5)]) == 4


def test_gpus_are_unused_if_one_process_could_use_them() -> None:
    curve = MemoryCurve(MemorySample(0.0, 0, 0, 0, 0, 0, 0), (), {})
    alone = replace(process(), devices=(UsedDevice(1, "T4", 1000, curve),))
    rig = VirtualRig.parse("3xT4")
    assert find_unused(rig, [alone], {}) == (0, 2)
    assert find_unused(rig, [alone, alone], {}) == ()
    assert find_unused(rig, [alone], {"CUDA_VISIBLE_DEVICES": "1"}) == ()  # the user hides others


def test_the_memory_of_a_device_in_its_facts() -> None:
    # tensors, workspaces, cached, context, collectives, mapped
    peak = MemorySample(2.0, 100, 20, 30, 400, 5, 6)
    first = MemorySample(1.0, 10, 2, 3, 400, 0, 0)
    device = UsedDevice(1, "T4", 1000, MemoryCurve(peak, (first, peak), {"parameters": 7}))
    facts = device.facts(3, Occupation(0.5, 0.25, 0.25))
    assert (facts.index, facts.rank, facts.gpu) == (1, 3, "T4")
    assert facts.peak.total_bytes == 561
    assert facts.peak.context_bytes == 406
    assert facts.peak.collective_bytes == 5
    assert facts.peak.headroom_bytes == 439
    assert (facts.busy_share, facts.waiting_share, facts.idle_share) == (0.5, 0.25, 0.25)
    assert device.memory_facts(3) == MemoryFacts(
        1, 3, (1.0, 2.0), (10, 100), (2, 20), (3, 30), (400, 411), {"parameters": 7}
    )
    held = replace(ABOUT, devices=(facts, replace(facts, rank=0, index=0)))
    assert held.peak_bytes(1, rank=3) == 561
    assert held.peak_bytes(1) == held.peak_bytes(0, rank=3) == 0


def test_the_events_of_a_trace() -> None:
    texts = ("kernel", "copy", "mm", "up", "train.py:3")
    intervals = Intervals(
        track=[1, 1, 2, 3],
        begin_seconds=[1.0, 2.0, 2.0, 3.0],
        seconds=[1.0, 0.5, 0.5, 1.0],
        kind=[0, 1, 1, 1],
        name=[2, -1, -1, -1],
        module=[3, -1, -1, -1],
        line=[4, -1, -1, -1],
        bytes=[64, -1, 0, -1],
        flow=[-1, 7, 7, 7],
    )
    facts = replace(
        ABOUT,
        texts=texts,
        intervals=intervals,
        tracks=tuple(Track(f"t{n}", n // 3, None if n == 0 else 0, None) for n in range(4)),
        steps=(StepFacts(3, False, 1.0, 3.5, 8, 2, 0.0, ()),),
        memory=(MemoryFacts(0, 1, (1.0, 2.0), (5, 6), None, (7, 8), None),),
    )
    events = [*trace_events(facts)]
    spans = [event for event in events if event["ph"] == "X"]
    assert spans[0] == {
        "ph": "X", "ts": 1e6, "dur": 2.5e6, "name": "step 3", "cat": "step", "pid": 0, "tid": 0,
        "args": {"samples": 8, "waits": 2},
    }  # fmt: skip
    assert spans[1]["name"] == "mm"
    assert spans[1]["args"] == {"module": "up", "line": "train.py:3", "bytes": 64}
    assert (spans[2]["name"], spans[2]["cat"], spans[2]["args"]) == ("unknown", "copy", {})
    assert spans[3]["args"] == {"bytes": 0}
    assert [(event["pid"], event["tid"]) for event in spans[1:]] == [(0, 2), (0, 2), (0, 3), (1, 4)]
    flows = [event for event in events if event["ph"] in "stf"]
    assert [(one["ph"], one["ts"], one["pid"]) for one in flows] == [
        ("s", 2.25e6, 0), ("t", 2.25e6, 0), ("f", 3.5e6, 1),
    ]  # fmt: skip
    assert {(one["id"], one["name"], one["cat"]) for one in flows} == {(7, "copy", "copy")}
    assert [one.get("bp") for one in flows] == [None, None, "e"]
    counters = [event for event in events if event["ph"] == "C"]
    assert [(one["name"], one["ts"], one["pid"], one["args"]) for one in counters] == [
        ("cuda:0 memory", 1e6, 1, {"tensors": 5, "cached": 7}),
        ("cuda:0 memory", 2e6, 1, {"tensors": 6, "cached": 8}),
    ]
    named = {(one["pid"], one["tid"]): one["args"] for one in events if one["ph"] == "M"}
    assert {pid for pid, _ in named} == {0, 1}
    titles = [one["args"]["name"] for one in events if one["name"] == "process_name"]
    assert titles == ["rank 0", "rank 1"]
