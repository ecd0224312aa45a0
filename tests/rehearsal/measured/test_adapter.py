"""The trace of PyTorch's profiler becomes the record of a process; figures are by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hand_written_trace import (
    BASE_NS,
    COLLECTIVE,
    PROCESS,
    THREAD,
    call,
    operator,
    span,
    work,
    write,
)

from anyrig.rehearsal.collective_times import collective_times
from anyrig.rehearsal.measured.adapter import TracedSteps, record_of_trace
from anyrig.rehearsal.measured.device_works import (
    Group,
    bytes_of_collective,
    short_kernel_name,
)
from anyrig.rehearsal.measured.memory_events import read_curves
from anyrig.rehearsal.measured.trace_file import read_trace
from anyrig.rehearsal.occupation import occupation_of
from anyrig.virtual.record_reading import IntervalKind


def steps_of(folder: Path, *added: dict) -> TracedSteps:
    return record_of_trace(read_trace(write(folder / "t.json", list(added)), BASE_NS), Group(2))


def rows_of(steps: TracedSteps) -> list[tuple[object, ...]]:
    """Return (track, begin, end, kind, name, module) of each interval; in microseconds."""
    record, columns = steps.record, steps.record.intervals
    return [
        (
            record.tracks[columns.track[i]].stream,
            round(columns.begin[i] * 1e6, 3),
            round(columns.end[i] * 1e6, 3),
            IntervalKind(columns.kind[i]).name,
            record.names[columns.name[i]],
            record.modules[columns.module[i]] if columns.module[i] >= 0 else None,
        )
        for i in range(len(columns))
    ]


def test_the_intervals_of_a_step(tmp_path: Path) -> None:
    assert rows_of(steps_of(tmp_path)) == [
        # The thread of the steps: each operator without the operators in it, cut at launches.
        (None, 110, 115, "HOST", "aten::linear", "layer"),
        (None, 115, 130, "HOST", "aten::addmm", "layer"),
        (None, 130, 155, "HOST", "aten::addmm", "layer"),
        (None, 155, 160, "HOST", "aten::linear", "layer"),
        (None, 170, 178, "HOST", "aten::item", None),
        (None, 178, 180, "HOST", "aten::item", None),
        (None, 180, 225, "WAIT", "aten::item", None),
        (None, 225, 230, "HOST", "aten::item", None),
        # The thread of the backward pass, whose node has the module of its forward operator.
        (None, 135, 138, "HOST", "AddmmBackward0", "layer"),
        (None, 138, 145, "HOST", "nccl:all_reduce", "layer"),
        (None, 145, 148, "HOST", "nccl:all_reduce", "layer"),
        (None, 148, 150, "HOST", "AddmmBackward0", "layer"),
        # The streams.
        (7, 140, 190, "KERNEL", "aten::addmm: gemm_kernel", "layer"),
        (20, 160, 250, "COLLECTIVE", "nccl:all_reduce", "layer"),
        (7, 200, 220, "COPY", "aten::item: Memcpy DtoH (Device -> Pageable)", None),
    ]


def test_launches_bytes_and_threads(tmp_path: Path) -> None:
    record = steps_of(tmp_path).record
    columns = record.intervals
    assert list(columns.launch[-3:]) == [1, 9, 4]
    assert list(columns.bytes[-3:]) == [-1, 4000, 4]
    assert list(columns.nodes[-3:]) == [0, 1, 0]
    assert [track.in_backward for track in record.tracks] == [False, True, False, False]
    assert [track.thread for track in record.tracks[:2]] == [0, 4720]


def test_a_step_ends_when_its_work_is_done(tmp_path: Path) -> None:
    late = [call("cudaLaunchKernel", 290, 295, 20), work("kernel", "late", 320, 350, 7, 20)]
    later = [call("cudaLaunchKernel", 305, 306, 21), work("kernel", "later", 350, 400, 7, 21)]
    steps = steps_of(tmp_path, *late, *later)
    assert [round(one * 1e6, 3) for one in steps.host_seconds] == [100, 300]
    assert [round(one * 1e6, 3) for one in steps.done_seconds] == [100, 350]
    assert rows_of(steps)[-2:] == [
        (7, 320, 350, "KERNEL", "late", None),  # launched outside of operators
        (7, 350, 400, "KERNEL", "later", None),
    ]


def test_how_busy_the_device_is_and_what_overlaps(tmp_path: Path) -> None:
    steps = steps_of(tmp_path)
    occupation = occupation_of(steps.record, 0, 0, 100e-6, 300e-6)
    assert occupation.busy == pytest.approx(50 / 200)
    # Launched and not done from 130 to 250, when the all-reduce ends.
    assert occupation.waiting == pytest.approx((250 - 130 - 50) / 200)
    times = collective_times(steps.record, 0, 0, 100e-6, 300e-6, 1)
    assert times is not None
    assert (times.in_node_seconds, times.across_nodes_seconds) == (pytest.approx(90e-6), 0)
    assert times.exposed_seconds == pytest.approx(60e-6)


def test_ranks_agree_on_the_flows_of_collectives(tmp_path: Path) -> None:
    second = [
        call("cudaLaunchKernelExC", 240, 245, 30),
        work("kernel", "ncclDevKernel_AllReduce", 260, 270, 20, 30, **COLLECTIVE),
    ]
    message = {**COLLECTIVE, "Collective name": "send"}
    sent = [
        call("cudaLaunchKernelExC", 250, 255, 31),
        work("kernel", "ncclDevKernel_SendRecv", 280, 290, 20, 31, **message),
    ]
    flows = [
        list(steps_of(tmp_path, *second, *sent).record.intervals.flow)[-4:] for rank in range(2)
    ]
    assert flows[0] == flows[1]
    first, copy, next_one, message_flow = flows[0]
    assert first != next_one
    assert min(first, next_one) >= 1 << 62
    assert (copy, message_flow) == (-1, -1)


@pytest.mark.parametrize(
    "other", [{"Process Group Name": "1"}, {"Process Group Ranks": "[0, 2]"}], ids=["name", "ranks"]
)
def test_only_collectives_of_one_process_group_are_joined(
    other: dict[str, str], tmp_path: Path
) -> None:
    """Each group counts its own, so ranks may reach those of different groups in any order."""
    flows = []
    for early, late in (
        (COLLECTIVE, {**COLLECTIVE, **other}),
        ({**COLLECTIVE, **other}, COLLECTIVE),
    ):
        steps = steps_of(
            tmp_path,
            call("cudaLaunchKernelExC", 240, 245, 30),
            work("kernel", "ncclDevKernel_AllReduce", 260, 270, 20, 30, **early),
            call("cudaLaunchKernelExC", 250, 255, 31),
            work("kernel", "ncclDevKernel_AllReduce", 280, 290, 20, 31, **late),
        )
        flow = list(steps.record.intervals.flow)
        assert len({*flow} - {-1}) == 3  # with the one of every trace
        flows.append(flow[-2:])
    assert flows[0] == flows[1][::-1]


def test_collectives_are_numbered_anew_in_each_step(tmp_path: Path) -> None:
    """So a rank whose first step had one more agrees with the others on those of the second."""
    next_step = [
        call("cudaLaunchKernelExC", 310, 315, 32),
        work("kernel", "ncclDevKernel_AllReduce", 320, 330, 20, 32, **COLLECTIVE),
    ]
    more = [
        call("cudaLaunchKernelExC", 240, 245, 30),
        work("kernel", "ncclDevKernel_AllReduce", 305, 309, 20, 30, **COLLECTIVE),
    ]
    one = list(steps_of(tmp_path, *next_step).record.intervals.flow)
    other = list(steps_of(tmp_path, *more, *next_step).record.intervals.flow)
    assert one[-1] == other[-1]
    assert len({*other[-4:]} - {-1}) == 3


def test_work_of_other_kinds(tmp_path: Path) -> None:
    message = {**COLLECTIVE, "Collective name": "recv"}
    steps = steps_of(
        tmp_path,
        call("hipLaunchKernel", 240, 245, 30),
        work("kernel", "rcclGenericKernel", 260, 270, 20, 30),
        work("gpu_memset", "Memset (Device)", 270, 275, 7, 31, bytes=64),
        work("kernel", "ncclDevKernel_SendRecv", 280, 290, 20, 32, **message),
    )
    assert rows_of(steps)[-3:] == [
        (20, 260, 270, "COLLECTIVE", "rcclGenericKernel", None),
        (7, 270, 275, "KERNEL", "Memset (Device)", None),
        (20, 280, 290, "COLLECTIVE", "ncclDevKernel_SendRecv", None),
    ]
    columns = steps.record.intervals
    assert list(columns.flow[-3:]) == [-1, -1, -1]
    assert list(columns.bytes[-3:]) == [-1, 64, 4000]
    assert list(columns.nodes[-3:]) == [1, 0, 1]


def test_calls_of_the_driver_launch_too(tmp_path: Path) -> None:
    triton = span("cuda_driver", "cuLaunchKernel", 240, 245, (PROCESS, THREAD), correlation=30)
    kernel = work("kernel", "triton_poi_fused_0", 260, 270, 7, 30)
    other = span("user_annotation", "ProfilerStep#3", 235, 250, (PROCESS, THREAD))
    steps = steps_of(
        tmp_path, operator("## Call CompiledFxGraph ##", 230, 255), other, triton, kernel
    )
    name = "## Call CompiledFxGraph ##"
    assert rows_of(steps)[-1] == (7, 260, 270, "KERNEL", f"{name}: triton_poi_fused_0", None)
    assert [row for row in rows_of(steps) if row[4] == name] == [
        (None, begin, end, "HOST", name, None)
        for begin, end in ((230, 235), (235, 245), (245, 250), (250, 255))
    ]


@pytest.mark.parametrize(
    "name",
    [
        *(f"{api}DeviceSynchronize" for api in ("cuda", "hip")),
        *(f"{api}StreamSynchronize" for api in ("cuda", "hip", "cu")),
        *(f"{api}EventSynchronize" for api in ("cuda", "hip", "cu")),
        *("cudaMemcpy", "hipMemcpy", "cuCtxSynchronize"),
    ],
)
def test_calls_that_wait_for_a_device(name: str, tmp_path: Path) -> None:
    waits = [call(name, 260, 270, 40), call("cudaMemcpyAsync", 275, 280, 41)]
    (row,) = (row for row in rows_of(steps_of(tmp_path, *waits)) if row[1] in (260, 275))
    assert row == (None, 260, 270, "WAIT", name, None)


def test_other_threads(tmp_path: Path) -> None:
    """A thread that computes no backward pass, and one whose number is below that of the steps."""
    added = [operator("aten::copy_", 200, 210, 4000), operator("aten::item", 150, 160, 4800)]
    tracks = [one for one in steps_of(tmp_path, *added).record.tracks if one.device is None]
    assert tracks[0].thread == 0
    in_backward = {one.thread: one.in_backward for one in tracks}
    assert in_backward == {0: False, 4720: True, 4000: False, 4800: False}


def test_nodes_of_a_collective() -> None:
    assert Group(2).count_nodes({"Process Group Ranks": "[0, 1]", "Group size": 2}) == 1
    assert Group(2).count_nodes({"Process Group Ranks": "[0, 2]", "Group size": 2}) == 2
    assert Group(2).count_nodes({"Process Group Ranks": [1, 2, 3], "Group size": 3}) == 2
    assert Group(8).count_nodes({"Process Group Ranks": "[0, 1, ...]", "Group size": 64}) == 8
    assert Group(8).count_nodes({}) == 1


@pytest.mark.parametrize(
    ("kind", "bytes_moved"),
    [
        *((kind, 1000) for kind in ("Bool", "Byte", "Char", "Float8_e4m3fn", "Float8_e5m2")),
        *((kind, 2000) for kind in ("Half", "BFloat16", "Short", "UInt16")),
        *((kind, 4000) for kind in ("Float", "Int", "UInt32", "ComplexHalf")),
        *((kind, 8000) for kind in ("Double", "Long", "UInt64", "ComplexFloat")),
        ("ComplexDouble", 16000),
        ("Unheard", -1),
    ],
)
def test_bytes_of_a_collective(kind: str, bytes_moved: int) -> None:
    args = {"dtype": kind, "In msg nelems": 500, "Out msg nelems": 1000}
    assert bytes_of_collective(args) == bytes_moved
    args = {"dtype": kind, "In msg nelems": 1000, "Out msg nelems": 500}
    assert bytes_of_collective(args) == bytes_moved
    assert bytes_of_collective({"dtype": kind}) == -1
    assert bytes_of_collective(COLLECTIVE) == 4000


def test_names_of_kernels() -> None:
    assert short_kernel_name("ampere_sgemm_128x64_tn") == "ampere_sgemm_128x64_tn"
    assert short_kernel_name("void a::(anonymous namespace)::b<c::d, 4>(int)") == "b"
    assert short_kernel_name("void cutlass::Kernel2<cutlass_80_gemm<1>>(x)") == "cutlass_80_gemm"
    assert short_kernel_name("void cutlass::Kernel<ns::tensorop>(x)") == "tensorop"
    assert short_kernel_name("Cijk_" * 40) == f"{'Cijk_' * 15}Cijk…"


def test_memory_is_in_the_order_of_time_and_of_gpus_only(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.json"), BASE_NS)
    ((index, curve),) = read_curves(trace.memory).items()
    assert index == 0
    assert [round(one * 1e6) for one in curve.seconds] == [110, 121]
    assert (curve.allocated_bytes, curve.reserved_bytes) == ([256, 512], [2048, 2048])


def test_traces_without_steps_or_devices(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    empty = record_of_trace(read_trace(path), Group())
    assert (empty.host_seconds, len(empty.record.intervals)) == ((), 0)


def test_the_end_of_the_profile_is_no_time_of_the_optimizer(tmp_path: Path) -> None:
    steps = span("user_annotation", "Optimizer.step#SGD.step", 290, 900, (PROCESS, THREAD))
    rows = rows_of(steps_of(tmp_path, steps))
    assert [row for row in rows if row[4] == "Optimizer.step#SGD.step"] == [
        (None, 290, 300, "HOST", "Optimizer.step#SGD.step", None)
    ]


def test_an_operator_without_time_of_its_own(tmp_path: Path) -> None:
    nested = [operator("aten::outer", 400, 410), operator("aten::inner", 400, 410)]
    assert rows_of(steps_of(tmp_path, *nested))[8] == (
        *(None, 400, 410, "HOST", "aten::inner", None),
    )


@pytest.mark.parametrize("text", ["[]", "{}", '{"traceEvents": [{"cat": "kernel"}]}', "no JSON"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"t\.json is not a trace|Expecting value"):
        read_trace(path)
