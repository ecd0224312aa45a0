"""The segments, blocks and settings in a snapshot of torch.cuda.memory."""

from __future__ import annotations

import os

import pytest
import torch
from device_memory import own_segments, take

DEVICE = 7  # used only by the tests of pools, history and temporaries
MIB = 2**20

pytestmark = pytest.mark.usefixtures("own_device")


def test_a_snapshot_has_the_sizes_and_states_of_segments_and_blocks() -> None:
    torch.cuda.empty_cache()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        large = take(3 * MIB - 100)
    small = take(100)
    one, other = sorted(own_segments(), key=lambda segment: int(segment["total_size"]))
    names = ("segment_type", "total_size", "allocated_size", "active_size", "requested_size")
    assert [one[name] for name in names] == ["small", 2 * MIB, 512, 512, 100]
    assert [other[name] for name in names] == ["large", 20 * MIB, *[3 * MIB] * 2, 3 * MIB - 100]
    assert (other["stream"], one["stream"]) == (side.cuda_stream, 0)
    assert (other["is_expandable"], other["segment_pool_id"], other["frames"]) == (
        False,
        (0, 0),
        [],
    )
    used, free = other["blocks"]
    names = ("address", "size", "requested_size", "state")
    start = other["address"]
    assert [used[name] for name in names] == [start, 3 * MIB, 3 * MIB - 100, "active_allocated"]
    assert [free[name] for name in names] == [start + 3 * MIB, 17 * MIB, 0, "inactive"]
    torch.cuda._sleep(10**9)
    large.record_stream(torch.cuda.current_stream())
    del large
    (pending,) = (segment for segment in own_segments() if segment["segment_type"] == "large")
    assert pending["blocks"][0]["state"] == "active_pending_free"
    assert (pending["allocated_size"], pending["active_size"]) == (0, 3 * MIB)
    torch.cuda.synchronize()
    del small


def test_a_snapshot_has_the_settings_and_no_traces_unless_asked() -> None:
    snapshot = torch.cuda.memory._snapshot()
    assert snapshot["external_annotations"] == []
    settings = snapshot["allocator_settings"]
    assert settings["PYTORCH_CUDA_ALLOC_CONF"] == os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    assert settings["expandable_segments"] is False
    assert settings["garbage_collection_threshold"] == 0
    assert settings["max_split_size"] == -1
    powers = [str(2**i) for i in range(len(settings["roundup_power2_divisions"]))]
    assert [*settings["roundup_power2_divisions"]] == powers
    assert set(settings["roundup_power2_divisions"].values()) == {0}
    assert torch._C._cuda_memorySnapshot((0, 0, False))["device_traces"] == []
