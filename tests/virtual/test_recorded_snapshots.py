"""The allocator model creates the segments that real GPUs created for the same requests."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from allocator_model import AllocatorModel
from recorded_snapshot import Event, Snapshot, State, calibration_folder, replay

FOLDER = calibration_folder()
SNAPSHOTS = sorted((FOLDER / "allocator").glob("*.json.gz")) if FOLDER is not None else []
MIB = 2**20


@pytest.mark.skipif(
    not SNAPSHOTS,
    reason="ANYRIG_CALIBRATION names no folder with recorded snapshots",
)
@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name)
def test_the_same_segments_in_the_same_order(allocator_library: ctypes.CDLL, path: Path) -> None:
    model = AllocatorModel(allocator_library, 1 << 46)
    try:
        agreement = replay(Snapshot.read(path), model)
    finally:
        model.close()
    assert agreement.allocations > 0
    assert agreement.segments > 0
    assert agreement.differences == []


def test_the_state_at_the_start_follows_from_the_end() -> None:
    events = [
        Event("free_completed", 100 * MIB, 3 * MIB - 100),
        Event("segment_alloc", 200 * MIB, 20 * MIB),
        Event("alloc", 200 * MIB, 4 * MIB),
    ]
    end = State({100 * MIB: 20 * MIB, 200 * MIB: 20 * MIB}, {200 * MIB: 4 * MIB})
    start = Snapshot("made up", end, events).start()
    assert start.segments == {100 * MIB: 20 * MIB}
    assert start.blocks == {100 * MIB: 3 * MIB}


def test_a_segment_that_differs_is_reported(allocator_library: ctypes.CDLL) -> None:
    # A real allocator would have used the free 17 MiB of the first segment.
    events = [
        Event("segment_alloc", 200 * MIB, 20 * MIB),
        Event("alloc", 200 * MIB, 4 * MIB),
    ]
    blocks = {100 * MIB: 3 * MIB, 200 * MIB: 4 * MIB}
    end = State({100 * MIB: 20 * MIB, 200 * MIB: 20 * MIB}, blocks)
    model = AllocatorModel(allocator_library, 1 << 46)
    try:
        agreement = replay(Snapshot("made up", end, events), model)
    finally:
        model.close()
    assert agreement.differences == [
        f"request 1 of {4 * MIB} bytes created segments of [{20 * MIB}] bytes on the GPU and of "
        "[] here"
    ]
