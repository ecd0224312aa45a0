"""The facts, the summary and the page of two ranks that were measured; figures are by hand."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand_written_trace import BASE_NS, write

from anyrig.programs.program import Program
from anyrig.rehearsal.measured.adapter import record_of_trace
from anyrig.rehearsal.measured.device_works import Group
from anyrig.rehearsal.measured.measured_device import MeasuredDevice
from anyrig.rehearsal.measured.measured_facts import write_report
from anyrig.rehearsal.measured.trace_file import read_trace
from anyrig.rehearsal.process_record import ProcessRecord
from anyrig.rehearsal.record_folder import RecordFolder
from anyrig.rehearsal.reporting import Reporting
from anyrig.rehearsal.step_ends import StepEnd

GIB = 2**30
A100 = "NVIDIA A100-SXM4-80GB"


def process_of(rank: int, trace: Path) -> ProcessRecord:
    """Return a rank whose clock is 50 us behind for each rank before it."""
    steps = record_of_trace(read_trace(trace, BASE_NS - rank * 50_000), Group(2))
    device = MeasuredDevice(
        0, A100, 80 * GIB, 3 * GIB, 2 * GIB, True, (1e-4, 2e-4), (GIB, 2 * GIB), (3 * GIB, 3 * GIB)
    )
    begin, end = steps.done_seconds
    ends = (StepEnd(end, steps.host_seconds[1], 4, 0.0),)
    host_begin = steps.host_seconds[0]
    return ProcessRecord(
        rank, steps.record, begin, host_begin, ends, (device,), steps_taken=7, problems=()
    )


@pytest.fixture
def reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str, str]:
    """The facts, the summary and the page of two ranks, of three that were started."""
    trace = write(tmp_path / "t.json")
    reporting = Reporting(json=tmp_path / "facts.json", report=tmp_path / "page.html")
    with RecordFolder.made() as folder:
        for rank in range(2):
            folder.write(process_of(rank, trace))
        processes = folder.read_all()
    assert processes[0] == process_of(0, trace)
    write_report(reporting, Program("train.py", ("--lr", "1")), processes, 0, None, 3)
    facts = json.loads((tmp_path / "facts.json").read_text())
    return facts, capsys.readouterr().err, (tmp_path / "page.html").read_text()


def test_the_facts(reported: tuple[dict[str, Any], str, str]) -> None:
    facts, _, _ = reported
    assert facts["rig"] == f"2x {A100}"
    (step,) = facts["steps"]
    # From the begin of the first rank to the end of the last one.
    assert step["begin_seconds"] == pytest.approx(100e-6)
    assert step["end_seconds"] == pytest.approx(350e-6)
    assert (step["number"], step["samples"], step["waits"], step["path"]) == (2, 8, 1, [])
    first, second = facts["devices"]
    assert first["busy_share"] == pytest.approx(50 / 250)
    assert second["busy_share"] == pytest.approx(50 / 250)
    assert first["waiting_share"] == pytest.approx(70 / 250)
    assert first["idle_share"] == pytest.approx(130 / 250)
    assert facts["collectives"]["in_node_seconds"] == pytest.approx(90e-6)
    assert facts["collectives"]["exposed_seconds"] == pytest.approx(60e-6)
    flows = Counter(flow for flow in facts["intervals"]["flow"] if flow >= 0)
    assert list(flows.values()) == [2]  # the all-reduce joins both ranks
    assert facts["memory"][0]["cached_bytes"] == [2 * GIB, GIB]
    assert [track["title"] for track in facts["tracks"]] == [
        f"rank {rank} {name}"
        for rank in range(2)
        for name in ("host", "host, backward 1", "cuda:0 stream 7", "cuda:0 stream 20")
    ]


def test_the_summary(reported: tuple[dict[str, Any], str, str]) -> None:
    _, summary, _ = reported
    assert summary.splitlines() == [
        f"anyrig: train.py on 2x {A100}, measured",
        "  step       250.0 us, step 2 of 7 steps; 32,000 samples/s",
        "             the host waits for a GPU once in a step",
        "             collectives take 90.0 us in a node; for 60.0 us no kernel runs at the same "
        "time",
        "  cuda:0     rank 0, busy 20 %, waiting 28 %, idle 52 %",
        "             rank 0, PyTorch took at most 3.00 GiB of 80.00 GiB; tensors took at most "
        "2.00 GiB",
        "  cuda:0     rank 1, busy 20 %, waiting 28 %, idle 52 %",
        "             rank 1, PyTorch took at most 3.00 GiB of 80.00 GiB; tensors took at most "
        "2.00 GiB",
        "  note       not measured: workspaces, which are part of the tensors, the CUDA context, "
        "NCCL's buffers, and what the tensors are at the peak",
        "             not measured: the lines of the program and the critical path, which anyrig "
        "rehearse predicts; the profiler itself slows the host down",
        "             no record of rank 2, which did not end by itself",
    ]


def test_the_page(reported: tuple[dict[str, Any], str, str]) -> None:
    _, _, page = reported
    assert f"measured on <bdi>2x {A100}</bdi>" in page
    assert "anyrig run train.py --lr 1 · measured by PyTorch&#x27;s profiler" in page
    assert "<dt>GPUs busy</dt><dd>20\u00a0%" in page
    assert "aten::addmm: gemm_kernel" in page
    assert "no record of rank 2" in page
    assert page.count("not measured</td>") == 12  # five parts of each peak, and its most
    assert "No findings." not in page
    assert "How far the times are known to be off" not in page


def device(index: int, gpu: str, has_works: bool = True) -> MeasuredDevice:
    return MeasuredDevice(index, gpu, 80 * GIB, 3 * GIB, 2 * GIB, has_works)


def measurement_of(folder: Path, ranks: int, *processes: ProcessRecord) -> tuple[str, Any, Any]:
    """Return the rig, the measurement and the devices in the facts of a program."""
    file = folder / "facts.json"
    write_report(Reporting(quiet=True, json=file), Program("a.py", ()), processes, 0, None, ranks)
    facts = json.loads(file.read_text())
    return facts["rig"], facts["measurement"], facts["devices"]


def test_what_was_not_measured_is_named_with_its_rank(tmp_path: Path) -> None:
    whole = process_of(0, write(tmp_path / "t.json"))
    seen = replace(whole, devices=(device(0, A100), device(1, A100)))
    unseen = replace(
        whole,
        rank=2,
        devices=(device(1, "Tesla T4", False),),
        problems=("it broke",),
        steps_taken=9,
    )
    rig, measured, devices = measurement_of(tmp_path, 4, seen, unseen)
    assert rig == f"2x {A100} + Tesla T4"
    assert measured["steps_taken"] == 9
    assert measured["notes"][1:2] + measured["notes"][3:] == [
        "not measured: the work of rank 2 cuda:1, of which the profiler saw nothing",
        "no record of rank 1, 3, which did not end by itself",
        "rank 2: it broke",
    ]
    assert [one["busy_share"] is None for one in devices] == [False, False, True]
    assert [one["waiting_share"] is None for one in devices] == [False, False, True]
    assert [one["idle_share"] is None for one in devices] == [False, False, True]
    rig, measured, _ = measurement_of(tmp_path, 1, replace(unseen, rank=0))
    assert rig == "Tesla T4"
    assert measured["notes"][1:2] + measured["notes"][3:] == [
        "not measured: the work of cuda:1, of which the profiler saw nothing",
        "it broke",
    ]


def test_without_a_profile_only_the_peak_of_memory_is_known(tmp_path: Path) -> None:
    whole = process_of(0, write(tmp_path / "t.json"))
    unprofiled = replace(whole, ends=(), devices=(device(0, A100, False),), steps_taken=1)
    _, measured, (found,) = measurement_of(tmp_path, 1, unprofiled)
    (note,) = measured["notes"]
    assert note.startswith("not measured: workspaces")
    assert found["peak"] == {
        "total_bytes": 3 * GIB,
        "tensor_bytes": 2 * GIB,
        **dict.fromkeys(("workspace_bytes", "context_bytes", "collective_bytes")),
        **dict.fromkeys(("cached_bytes", "headroom_bytes", "most_bytes")),
    }


def test_memory_is_never_less_than_its_tensors() -> None:
    curve = MeasuredDevice(1, A100, 9, 5, 4, True, (0.1, 0.2), (4, 3), (3, 5)).memory_facts(2)
    assert (curve.rank, curve.device, curve.seconds) == (2, 1, (0.1, 0.2))
    assert (curve.tensor_bytes, curve.cached_bytes) == ((4, 3), (0, 2))
    assert (curve.workspace_bytes, curve.context_bytes) == (None, None)
