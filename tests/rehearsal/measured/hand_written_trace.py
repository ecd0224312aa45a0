"""A trace as Kineto writes it for a program on a real GPU, by hand, with round numbers.

Microseconds of a step that is profiled from 100 on, with a module ``layer``::

    thread 1    |100 mark|  |110 aten::linear ────────160|  |170 item 230|  |300 mark|
                             |115 aten::addmm ──155|          |180 sync 225|
                               |120 launch 130|
    thread 2                     |135 AddmmBackward0 ─────150|
                                  |140 launch 145|
    stream 7                        |140 addmm ────190|  |200 copy 220|
    stream 20                             |160 all-reduce ────────────250|

The flows and arguments follow ``output_json.cpp`` of Kineto and the traces of real GPUs in the
tests of facebookresearch/HolisticTraceAnalysis. Nothing here is copied from them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE_NS = 1_711_964_646_000_000_000
PROCESS, THREAD, OTHER = 4711, 4711, 4720
ADDMM = "void at::native::(anonymous namespace)::gemm_kernel<float, 128>(int, float const*)"


def span(
    category: str, name: str, begin: float, end: float, place: tuple[int, int], **args: Any
) -> dict[str, Any]:
    """Return an event from `begin` to `end`, in microseconds."""
    process, thread = place
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": begin,
        "dur": end - begin,
        "args": args,
    }


def operator(name: str, begin: float, end: float, thread: int = THREAD, **args: Any) -> Any:
    """Return an operator, or a mark of anyrig."""
    return span("cpu_op", name, begin, end, (PROCESS, thread), **args)


def call(name: str, begin: float, end: float, correlation: int, thread: int = THREAD) -> Any:
    """Return a call of the CUDA runtime."""
    args = {"External id": 2, "cbid": 211, "correlation": correlation}
    return span("cuda_runtime", name, begin, end, (PROCESS, thread), **args)


def work(
    category: str, name: str, begin: float, end: float, stream: int, correlation: int, **args: Any
) -> Any:
    """Return what device 0 does."""
    fixed = {"device": 0, "context": 1, "stream": stream, "correlation": correlation}
    return span(category, name, begin, end, (0, stream), **fixed, **args)


def flow(phase: str, name: str, number: int, begin: float, place: tuple[int, int]) -> Any:
    """Return one end of an arrow."""
    ends = {"bp": "e"} if phase == "f" else {}
    process, thread = place
    place_of = {"pid": process, "tid": thread, "ts": begin}
    return {"ph": phase, "id": number, "cat": name, "name": name, **place_of, **ends}


def memory(moment: float, allocated: int, reserved: int, device_type: int = 1) -> Any:
    """Return what an allocator reports."""
    args = {"Total Reserved": reserved, "Total Allocated": allocated, "Bytes": 512}
    place = {"Device Id": 0, "Device Type": device_type, "Addr": 1}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": PROCESS,
        "tid": THREAD,
        "ts": moment,
        "args": {**args, **place},
    }


COLLECTIVE = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 2,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
}


def events() -> list[dict[str, Any]]:
    """Return the events of the picture above, and some that the report ignores."""
    host, other = (PROCESS, THREAD), (PROCESS, OTHER)
    return [
        {"ph": "M", "name": "process_name", "ts": 0.0, "pid": PROCESS, "args": {"name": "python"}},
        operator("anyrig step", 100, 101),
        operator("anyrig module layer", 105, 165),
        operator("aten::linear", 110, 160),
        operator("aten::addmm", 115, 155, **{"External id": 2, "Sequence number": 7}),
        call("cudaStreamIsCapturing", 116, 117, 10),
        call("cudaLaunchKernel", 120, 130, 11),
        flow("s", "ac2g", 11, 120, host),
        flow("s", "fwdbwd", 1, 115, host),
        operator("autograd::engine::evaluate_function: AddmmBackward0", 135, 150, OTHER),
        flow("f", "fwdbwd", 1, 135, other),
        span("user_annotation", "nccl:all_reduce", 138, 148, other),
        call("cudaLaunchKernelExC", 140, 145, 12, OTHER),
        work("kernel", ADDMM, 140, 190, 7, 11, **{"External id": 2}),
        flow("f", "ac2g", 11, 140, (0, 7)),
        work("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 160, 250, 20, 12, **COLLECTIVE),
        span("gpu_user_annotation", "nccl:all_reduce", 160, 250, (0, 20)),
        operator("aten::item", 170, 230),
        call("cudaMemcpyAsync", 172, 178, 13),
        work("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 200, 220, 7, 13, bytes=4),
        call("cudaStreamSynchronize", 180, 225, 14),
        memory(121, 512, 2048),
        memory(110, 256, 2048),
        memory(122, 99, 0, device_type=0),
        operator("anyrig step", 300, 301),
        span("Trace", "PyTorch Profiler (0)", 90, 310, (0, 0)),
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 310.0},
    ]


def write(path: Path, added: list[dict[str, Any]] | None = None) -> Path:
    """Write the trace, with more events, to a file."""
    content = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events() + (added or []),
    }
    path.write_text(json.dumps(content))
    return path
