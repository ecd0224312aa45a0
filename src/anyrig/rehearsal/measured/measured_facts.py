"""Facts of a measured program, from the records of its processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version

from ... import __version__
from ...programs.program import Program
from ..facts import Facts, ProgramError
from ..measurement import Measurement
from ..process_record import ProcessRecord, merge_records
from ..record_facts import read_record_facts
from ..reporting import Reporting
from .measured_device import MeasuredDevice

_FIRST_STEP = 2  # the profile begins after the first one


def write_report(
    reporting: Reporting,
    program: Program,
    processes: Sequence[ProcessRecord],
    status: int,
    error: ProgramError | None,
    ranks: int = 1,
) -> None:
    """Write what was measured of a program of `ranks` ranks.

    Raises:
        ReportError: a file cannot be written.
    """
    about = Facts(
        program=program.name,
        arguments=program.arguments,
        rig=_describe_devices(processes),
        shape_only=False,
        torch=version("torch"),
        anyrig=__version__,
        status=status,
        error=error,
        measurement=Measurement(
            max((one.steps_taken for one in processes), default=0),
            tuple(_notes(processes, ranks)),
        ),
    )
    facts = about
    if processes:
        record = merge_records(processes)
        facts = read_record_facts(
            about,
            record,
            processes,
            path_reader=lambda record, texts: lambda begin, end: (),
            with_timelines=reporting.has_files,
            first_step=_FIRST_STEP,
        )
    reporting.write(facts)


def _describe_devices(processes: Sequence[ProcessRecord]) -> str:
    """Return the devices of all ranks, such as ``2x NVIDIA A100-SXM4-80GB``."""
    counts = Counter(device.gpu for one in processes for device in one.devices)
    parts = [name if count == 1 else f"{count}x {name}" for name, count in counts.items()]
    return " + ".join(parts) or "the CPU"


def _notes(processes: Sequence[ProcessRecord], ranks: int) -> list[str]:
    """Return what the report leaves out, and why."""
    notes = []
    devices = [(one.rank, device) for one in processes for device in one.devices]
    is_profiled = any(one.ends for one in processes)
    if devices:
        notes.append(
            "not measured: workspaces, which are part of the tensors, the CUDA context, NCCL's "
            "buffers, and what the tensors are at the peak"
        )
    for rank, device in devices:
        if is_profiled and isinstance(device, MeasuredDevice) and not device.has_works:
            where = f"rank {rank} cuda:{device.index}" if ranks > 1 else f"cuda:{device.index}"
            notes.append(f"not measured: the work of {where}, of which the profiler saw nothing")
    if is_profiled:
        notes.append(
            "not measured: the lines of the program and the critical path, which anyrig rehearse "
            "predicts; the profiler itself slows the host down"
        )
    found = {one.rank for one in processes}
    missing = [str(rank) for rank in range(ranks) if rank not in found]
    if missing:
        notes.append(f"no record of rank {', '.join(missing)}, which did not end by itself")
    for process in processes:
        where = f"rank {process.rank}: " if ranks > 1 else ""
        notes += [where + problem for problem in process.problems]
    return notes
