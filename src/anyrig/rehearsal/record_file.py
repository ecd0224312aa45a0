"""A file with the record of one process: a line of JSON, and the columns as raw bytes."""

from __future__ import annotations

import json
from array import array
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..memory.atomic_file import write_atomically
from ..virtual.record_reading import (
    MemoryCurve,
    MemorySample,
    Record,
    RecordedIntervals,
    RecordedTrack,
)
from .measured.measured_device import MeasuredDevice
from .process_record import ProcessRecord
from .step_ends import StepEnd
from .used_device import UsedDevice
from .work_log import StepWorks

_COMPLETE_FROM = "complete_from"


def write_record(path: Path, process: ProcessRecord) -> None:
    """Write the record of a process, atomically."""
    columns = {
        name: column
        for name, column in vars(process.record.intervals).items()
        if name != _COMPLETE_FROM
    }
    header = {
        "rank": process.rank,
        "begin": process.begin,
        "host_begin": process.host_begin,
        "ends": [asdict(end) for end in process.ends],
        "devices": [asdict(device) for device in process.devices],
        "works": None if process.works is None else asdict(process.works),
        "positions": process.positions,
        "steps_taken": process.steps_taken,
        "problems": process.problems,
        "tracks": [asdict(track) for track in process.record.tracks],
        "names": process.record.names,
        "lines": process.record.lines,
        "modules": process.record.modules,
        _COMPLETE_FROM: process.record.intervals.complete_from,
        "columns": [[name, column.typecode] for name, column in columns.items()],
        "length": len(process.record.intervals),
    }
    head = json.dumps(header).encode() + b"\n"
    write_atomically(path, head + b"".join(column.tobytes() for column in columns.values()))


def read_record_file(path: Path) -> ProcessRecord:
    """Return the record of a process that `write_record` wrote on this machine."""
    content = path.read_bytes()
    head, _, rest = content.partition(b"\n")
    header = json.loads(head)
    columns: dict[str, array[Any]] = {}
    for name, typecode in header["columns"]:
        column = columns[name] = array(typecode)
        size = header["length"] * column.itemsize
        column.frombytes(rest[:size])
        rest = rest[size:]
    record = Record(
        RecordedIntervals(header[_COMPLETE_FROM], **columns),
        tuple(RecordedTrack(**track) for track in header["tracks"]),
        tuple(header["names"]),
        tuple((file, number) for file, number in header["lines"]),
        tuple(header["modules"]),
    )
    return ProcessRecord(
        header["rank"],
        record,
        header["begin"],
        header["host_begin"],
        tuple(StepEnd(**end) for end in header["ends"]),
        tuple(map(_device_of, header["devices"])),
        None if header["works"] is None else StepWorks(**header["works"]),
        tuple(header["positions"]),
        header["steps_taken"],
        tuple(header["problems"]),
    )


def _device_of(device: dict[str, Any]) -> UsedDevice | MeasuredDevice:
    if "memory" not in device:
        return MeasuredDevice.from_dict(device)
    return UsedDevice(**{**device, "memory": _curve_of(device["memory"])})


def _curve_of(memory: dict[str, Any]) -> MemoryCurve:
    samples = tuple(MemorySample(**sample) for sample in memory["samples"])
    return MemoryCurve(MemorySample(**memory["peak"]), samples, memory["kinds"])
