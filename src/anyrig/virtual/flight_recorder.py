"""The functions of NCCL's flight recorder, which `torch._C._distributed_c10d` has in a CUDA build.

`csrc/collectives/flight_recorder.h` documents what is recorded and when. This file converts the
record to the formats of PyTorch's `FlightRecorderDetail.hpp`: pickle and JSON.
"""

from __future__ import annotations

import json
import pickle
from types import ModuleType
from typing import Any

import torch

_TIMES = ("time_discovered_started_ns", "time_discovered_completed_ns")


def patch(core: ModuleType, bindings: Any) -> None:
    """Add the functions that dump and reset the record to `bindings`."""

    def dump(
        includeCollectives: bool = True,  # noqa: N803 - PyTorch's names
        includeStackTraces: bool = True,  # noqa: N803
        onlyActive: bool = False,  # noqa: N803
    ) -> bytes:
        groups, statuses, calls = core.dump_flights(
            includeCollectives, includeStackTraces, onlyActive
        )
        record = {**_common(bindings), "pg_config": groups, "pg_status": statuses}
        if includeCollectives:
            record["entries"] = calls
        return pickle.dumps(record, protocol=2)

    def dump_json(
        includeCollectives: bool = True,  # noqa: N803
        onlyActive: bool = False,  # noqa: N803
    ) -> bytes:
        groups, statuses, calls = core.dump_flights(includeCollectives, False, onlyActive)
        record = {
            **_common(bindings),
            "pg_config": groups,
            "pg_status": {
                group: {name: str(number) for name, number in status.items()}
                for group, status in statuses.items()
            },
        }
        if calls:
            record["entries"] = [
                {**call, **{name: call[name] or 0 for name in _TIMES}} for call in calls
            ]
        return json.dumps(record).encode()

    bindings._dump_nccl_trace = dump
    bindings._dump_nccl_trace_json = dump_json
    bindings._reset_fr_recording_nccl = core.reset_flights


def _common(bindings: Any) -> dict[str, Any]:
    # The recorder of the other backends writes the same version of the format.
    others = json.loads(bindings._dump_fr_trace_json(includeCollectives=False))
    nccl: Any = torch.cuda.nccl
    return {
        "version": others["version"],
        "comm_lib_version": ".".join(str(part) for part in nccl.version()),
    }
