"""NCCL's flight recorder: the calls of all groups and their states."""

from __future__ import annotations

import json
import pickle
import re
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_classes import LEGACY

BINDINGS: Any = torch._C._distributed_c10d  # type: ignore[attr-defined]


def dump(**options: bool) -> Any:
    return pickle.loads(BINDINGS._dump_nccl_trace(**options))


def case_calls_and_their_state(world: Any) -> None:
    BINDINGS._reset_fr_recording_nccl()
    tensor = torch.zeros(3, 4, device="cuda")
    group = dist.new_group(group_desc="the group of this test")
    start_ns = time.time_ns()
    for _ in range(2):
        dist.all_reduce(tensor, group=group)
    dist.all_gather(
        [torch.empty(2, device="cuda") for _ in range(world.size)],
        torch.zeros(2, device="cuda"),
        group=group,
    )
    record = dump()
    assert set(record) == {"version", "comm_lib_version", "pg_config", "pg_status", "entries"}
    first, last = record["entries"][0], record["entries"][-1]
    name, description = first["process_group"]
    assert description == "the group of this test"
    config = record["pg_config"][name]
    assert config["desc"] == description
    assert json.loads(config["ranks"]) == list(range(world.size))
    assert record["pg_status"][str(first["pg_id"])] == {
        "last_enqueued_collective": 3,
        "last_started_collective": -1,
        "last_completed_collective": 3,
    }
    assert [entry["profiling_name"] for entry in record["entries"]] == [
        "nccl:all_reduce",
        "nccl:all_reduce",
        "nccl:all_gather",
    ]
    assert [entry["collective_seq_id"] for entry in record["entries"]] == [1, 2, 3]
    assert first["record_id"] == 0
    assert first["input_sizes"] == first["output_sizes"] == [[3, 4]]
    assert first["input_dtypes"] == ["Float"]
    assert last["output_sizes"] == [[2]] * world.size
    assert first["state"] == "completed"
    assert first["retired"]
    assert not first["is_p2p"]
    assert first["timeout_ms"] == 600_000
    assert "duration_ms" not in first
    assert first["time_discovered_started_ns"] is None
    assert start_ns <= first["time_created_ns"] <= first["time_discovered_completed_ns"]
    assert any(
        frame["filename"].endswith("recorded_flights.py")
        and frame["name"] == "case_calls_and_their_state"
        for frame in first["frames"]
    )
    assert "frames" not in dump(includeStackTraces=False)["entries"][0]
    assert "entries" not in dump(includeCollectives=False)
    assert dump(onlyActive=True)["entries"] == []
    as_json = json.loads(BINDINGS._dump_nccl_trace_json())
    assert as_json["version"] == record["version"]
    assert as_json["entries"][1]["process_group"] == [name, description]
    assert as_json["entries"][1]["time_discovered_started_ns"] == 0
    BINDINGS._reset_fr_recording_nccl()
    assert dump()["entries"] == []


def case_durations(world: Any) -> None:
    group: Any = dist.new_group()
    group._enable_collectives_timing()
    BINDINGS._reset_fr_recording_nccl()
    dist.all_reduce(torch.zeros(1000, device="cuda"), group=group)
    (entry,) = dump()["entries"]
    assert 0.001 < entry["duration_ms"] < 10
    assert entry["time_discovered_started_ns"] <= entry["time_discovered_completed_ns"]


def case_batched_messages(world: Any) -> None:
    BINDINGS._reset_fr_recording_nccl()
    group: Any = world.group(2)
    if world.rank < 2:
        tensors = [torch.zeros(2, 3, device="cuda"), torch.zeros(5, device="cuda")]
        peer = 1 - world.rank
        call = dist.irecv if world.rank == 0 else dist.isend
        for work in dist.batch_isend_irecv(
            [dist.P2POp(call, tensor, peer, group) for tensor in tensors]
        ):
            work.wait()
        entries = dump()["entries"]
        title = "nccl:recv 0<-1" if world.rank == 0 else "nccl:send 1->0"
        assert [entry["profiling_name"] for entry in entries] == [title, title, "nccl:coalesced"]
        assert [entry["p2p_seq_id"] for entry in entries] == [1, 1, 1]
        assert [entry["collective_seq_id"] for entry in entries] == [0, 0, 0]
        assert [entry["op_id"] for entry in entries] == [1, 2, 2]
        assert [entry["state"] for entry in entries[:2]] == ["scheduled"] * 2
        assert entries[0]["input_sizes"] == [[2, 3]]
        assert entries[2]["input_sizes"] == []
        assert all(entry["is_p2p"] for entry in entries)
        if world.rank == 0:
            assert entries[2]["state"] == "completed"
        dist.all_reduce(tensors[0], group=group)
        assert dump()["entries"][-1]["collective_seq_id"] == 1
    dist.barrier(device_ids=[world.rank])


def connected_group(world: Any, limit_seconds: float) -> Any:
    """Return a group of all ranks whose time limit does not include connecting the ranks."""
    group: Any = dist.new_group(backend=LEGACY)
    dist.all_reduce(torch.zeros(4, device="cuda"), group=group)
    group._get_backend(torch.device("cuda"))._set_default_timeout(timedelta(seconds=limit_seconds))
    return group


def case_a_rank_that_does_not_call(world: Any) -> None:
    group = connected_group(world, limit_seconds=0.5)
    BINDINGS._reset_fr_recording_nccl()
    if world.rank == 0:
        work: Any = dist.all_reduce(torch.zeros(4, device="cuda"), group=group, async_op=True)
        (entry,) = dump(onlyActive=True)["entries"]
        assert entry["state"] == "scheduled"
        assert entry["time_discovered_completed_ns"] is None
        assert not entry["retired"]
        with pytest.raises(dist.DistBackendError):
            work.wait()
        (entry,) = dump(onlyActive=True)["entries"]
        assert entry["state"] == "scheduled"
        assert entry["retired"]  # but not completed: the call timed out
    dist.barrier(device_ids=[world.rank])


def case_a_call_that_waits(world: Any) -> None:
    group = connected_group(world, limit_seconds=1.5)
    group._enable_collectives_timing()
    BINDINGS._reset_fr_recording_nccl()
    if world.rank == 0:
        seen: list[Any] = []

        def dump_later() -> None:
            while not any(entry["state"] == "started" for entry in seen):
                time.sleep(0.02)
                seen[:] = dump(onlyActive=True)["entries"]
                assert not any(entry["retired"] for entry in seen)

        thread = threading.Thread(target=dump_later)
        thread.start()
        with pytest.raises(dist.DistBackendError):  # at the group's timeout
            dist.all_reduce(torch.zeros(4, device="cuda"), group=group)
        thread.join()
        (entry,) = seen
        assert entry["state"] == "started"
        assert not entry["retired"]
    dist.barrier(device_ids=[world.rank])


def case_the_version_is_pytorchs(world: Any) -> None:
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/FlightRecorder.hpp"
    (version,) = re.findall(r'DEFINE_CONSTANT\(version_val, "([\d.]+)"\)', header.read_text())
    assert dump()["version"] == version
    # Another version may have other fields: compare FlightRecorderDetail.hpp, then add the
    # version here.
    assert version in {"2.10"}


def case_the_oldest_calls_are_dropped(world: Any) -> None:
    BINDINGS._reset_fr_recording_nccl()
    for _ in range(12):
        dist.all_reduce(torch.zeros(4, device="cuda"))
    entries = dump()["entries"]
    assert [entry["record_id"] for entry in entries] == list(range(2, 12))
