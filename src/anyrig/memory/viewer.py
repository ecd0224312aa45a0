"""A snapshot for PyTorch's memory viewer, with the modules and lines of operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .block import Origin
from .cuda_history import CudaHistory, Snapshot


def annotate_snapshot(
    snapshot: Snapshot, history: CudaHistory, origins: Mapping[int, Origin]
) -> Snapshot:
    """Return `snapshot` with only the history since `history` began, and with stacks.

    The stack of an entry is the module and the line of its operator, if known. The format is that
    of `torch.cuda.memory._dump_snapshot`.
    """
    traces = [
        [
            {**entry, "frames": _frames(entry.get("user_metadata", ""), origins)}
            for entry in trace[offset:]
        ]
        for trace, offset in zip(snapshot["device_traces"], history.offsets, strict=True)
    ]
    return {**snapshot, "device_traces": traces}


def _frames(label: str, origins: Mapping[int, Origin]) -> list[dict[str, Any]]:
    origin = origins.get(int(label)) if label.isdecimal() else None
    if origin is None:
        return []
    frames = []
    if origin.module is not None:
        frames.append({"filename": f"module {origin.module}", "line": 0, "name": origin.phase})
    if origin.line is not None:
        line = origin.line
        frames.append({"filename": line.file, "line": line.number, "name": line.function})
    return frames
