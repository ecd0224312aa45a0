"""Each check of `anyrig doctor` by itself."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from one_finding import only

import anyrig
from anyrig.devices.device import Device
from anyrig.devices.link import Link
from anyrig.devices.rig import Rig
from anyrig.errors import LaunchError
from anyrig.processes.nccl_class import class_of_nccl
from anyrig.processes.options import RunOptions
from anyrig.processes.preflight import bandwidth
from anyrig.processes.preflight.bandwidth import (
    check_all_reduce,
    link_bytes_per_second,
    refuse_wrong_sum,
    seconds_of,
)
from anyrig.processes.preflight.finding import Finding, Level
from anyrig.processes.preflight.limits import (
    check_limits,
    check_peers,
    judge_address_space,
    judge_locked_memory,
    judge_memory,
    judge_open_files,
    judge_shared_memory,
)
from anyrig.processes.preflight.nccl_group import judge_nccl_group
from anyrig.processes.preflight.node import Node, compare
from anyrig.units import format_bytes

MIB, GIB = 2**20, 2**30


# The all-reduce -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "bytes_per_second"), [(2, 640 * MIB), (4, 960 * MIB), (8, 1120 * MIB)]
)
def test_each_link_of_a_ring_carries_its_part(ranks: int, bytes_per_second: float) -> None:
    # 64 MiB in 0.1 s; two ranks send each half once in each direction.
    assert link_bytes_per_second(64 * MIB, ranks, 0.1) == pytest.approx(bytes_per_second)


@pytest.mark.gpus(2)
def test_the_time_includes_the_device_s_work() -> None:
    device = torch.device("cuda:1")
    with torch.cuda.device(device):
        torch.cuda._sleep(1000)  # earlier work on the stream does not count
        seconds = seconds_of(lambda: torch.cuda._sleep(int(1.41e9)), device)
    assert 0.5 < seconds < 2, seconds
    assert seconds_of(lambda: time.sleep(0.02), torch.device("cpu")) >= 0.02


@pytest.mark.parametrize("index", [0, 2, 4])
@pytest.mark.parametrize("value", [7.0, 9.0, float("nan")])
def test_a_wrong_sum_is_shown(index: int, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    numbers = torch.full((5,), 8.0)
    refuse_wrong_sum(numbers, 8.0)
    numbers[index] = value
    with pytest.raises(RuntimeError, match=rf"^rank 3 has the sum {value} instead of 8\.0$"):
        refuse_wrong_sum(numbers, 8.0)


def test_the_measured_bandwidth_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, options = Rig.detect(), RunOptions(processes=4)
    given = []

    def answer(*call: object) -> object:
        given.append(call)
        if isinstance(measured, LaunchError):
            raise measured
        return measured

    monkeypatch.setattr(bandwidth, "call_in_ranks", answer)
    measured: object = (0.1, 4, "gloo")
    assert check_all_reduce(rig, options, 7.0) == Finding(
        "all-reduce",
        Level.GOOD,
        "64.00 MiB over 4 ranks by gloo in 100.0 ms: 960.00 MiB/s on each link of a ring",
    )
    assert given[0][1:] == ((7.0,), {}, rig, options)
    measured = None
    here = check_all_reduce(rig, options, 7.0)
    assert here == Finding(
        "all-reduce", Level.GOOD, "the all-reduce of this node's ranks succeeded"
    )
    measured = LaunchError("rank 1 fell")
    fallen = check_all_reduce(rig, options, 7.0)
    assert (fallen.check, fallen.level) == ("all-reduce", Level.BAD)
    assert fallen.text.endswith("but their all-reduce failed: rank 1 fell")
    assert "NCCL_DEBUG=INFO" in (fallen.advice or "")
    alone = check_all_reduce(rig, RunOptions(processes=1), 7.0)
    assert (alone.level, alone.text) == (
        Level.GOOD,
        "a single rank has no other rank to communicate with",
    )
    assert len(given) == 3  # a single rank is not started


# Limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free_bytes", "processes", "level"),
    [
        (512 * MIB, 1, Level.GOOD),
        (512 * MIB - 1, 1, Level.DOUBTFUL),
        (4 * GIB, 8, Level.GOOD),  # 512 MiB each
        (4 * GIB - 1, 8, Level.DOUBTFUL),
        (4 * GIB, 9, Level.DOUBTFUL),
    ],
)
def test_the_memory_of_all_ranks_counts(free_bytes: int, processes: int, level: Level) -> None:
    memory = judge_memory(free_bytes, processes)
    assert memory.check == "memory"
    assert memory.level is level
    assert re.search(
        "free for 1 rank(;|$)" if processes == 1 else f"free for {processes} ranks", memory.text
    )
    assert bool(memory.advice) is (level is Level.DOUBTFUL)


@pytest.mark.parametrize(
    ("finding", "check", "level", "words"),
    [
        (judge_open_files(1024, None, 4), "open files", Level.GOOD, "may open 1024 files"),
        (judge_open_files(None, None, 4), "open files", Level.GOOD, "any number of files"),
        (judge_open_files(1023, None, 4), "open files", Level.BAD, "ulimit -n 65536"),
        (judge_open_files(1023, None, 4), "open files", Level.BAD, "files; 4 ranks with loaders"),
        (judge_open_files(1023, 4096, 4), "open files", Level.BAD, "ulimit -n 4096"),
        (judge_open_files(256, 1023, 4), "open files", Level.BAD, "raise the hard limit"),
        (judge_shared_memory(GIB, GIB), "shared memory", Level.GOOD, "1.00"),
        (judge_shared_memory(GIB - 1, 8 * GIB), "shared memory", Level.DOUBTFUL, "--shm-size"),
        (judge_address_space(None), "address space", Level.GOOD, "all memory"),
        (judge_address_space(80 * GIB), "address space", Level.DOUBTFUL, "80.00 GiB"),
        (judge_locked_memory(None, False), "locked memory", Level.GOOD, "all memory"),
        (judge_locked_memory(None, True), "locked memory", Level.GOOD, "all memory"),
        (judge_locked_memory(MIB, False), "locked memory", Level.GOOD, "no InfiniBand"),
        (judge_locked_memory(MIB, True), "locked memory", Level.DOUBTFUL, "ulimit -l unlimited"),
    ],
)
def test_limits(finding: Finding, check: str, level: Level, words: str) -> None:
    assert (finding.check, finding.level) == (check, level)
    assert words in f"{finding.text} {finding.advice}"
    assert bool(finding.advice) is (level is not Level.GOOD)


@contextmanager
def limited(which: int, most: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def test_limits_are_read_from_this_process(tmp_path: Path) -> None:
    alone = RunOptions(processes=1)
    with limited(resource.RLIMIT_NOFILE, 777), limited(resource.RLIMIT_MEMLOCK, 12288):
        found = {finding.check: finding for finding in check_limits(alone)}
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    open_files = judge_open_files(777, None if hard == resource.RLIM_INFINITY else hard, 1)
    assert found["open files"] == open_files
    has_infiniband = Path("/sys/class/infiniband").is_dir()
    assert found["locked memory"] == judge_locked_memory(12288, has_infiniband)
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    is_limited = space != resource.RLIM_INFINITY
    assert found["address space"] == judge_address_space(space if is_limited else None)
    assert re.match(r"[\d.]+ [MGT]iB of the host's memory are free", found["memory"].text)
    options = RunOptions(processes=1, log_dir=tmp_path / "logs")
    assert only(check_limits(options), "log folder").level is Level.GOOD
    options = RunOptions(processes=1, log_dir=tmp_path / "file" / "logs")
    (tmp_path / "file").touch()  # since the flags were checked
    unwritable = only(check_limits(options), "log folder")
    assert (unwritable.level, unwritable.advice) == (
        Level.BAD,
        "name another folder with --log-dir",
    )


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_only_free_shared_memory_is_reported_as_free() -> None:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage("/dev/shm").free // 20)
        before = shutil.disk_usage("/dev/shm")
        found = only(check_limits(RunOptions(processes=1)), "shared memory")
        after = shutil.disk_usage("/dev/shm")
    assert format_bytes(before.free) != format_bytes(before.total)
    assert found in (
        judge_shared_memory(before.free, before.total),
        judge_shared_memory(after.free, after.total),
    )


# Other nodes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("apart_seconds", "late_seconds", "is_found"),
    [
        (1.9, 0.0, False),
        (2.1, 0.0, True),
        (-2.1, 0.0, True),
        (7.0, 0.5, True),
        (7.0, 6.0, False),  # the description may have taken 6 s to arrive
        (8.5, 6.0, True),
        (-8.5, 6.0, True),
    ],
)
def test_clocks_that_differ(apart_seconds: float, late_seconds: float, is_found: bool) -> None:
    here = Node("node0", "10.0.0.1", 1, unix_seconds=1000.0)
    there = Node("node1", "10.0.0.2", 1, unix_seconds=1000.0 + apart_seconds)
    clocks = [f for f in compare([here, there], [0.0, late_seconds]) if f.check == "clocks"]
    assert [f.level for f in clocks] == [Level.DOUBTFUL] * is_found
    if is_found:
        assert f"about {abs(apart_seconds):.0f} s apart" in clocks[0].text
        assert "node1 (10.0.0.2)" in clocks[0].text


def test_this_node_describes_itself() -> None:
    rig = Rig.detect()
    before = time.time()
    here = Node.here(rig, "10.0.0.1", {"10.0.0.2": "GLOO"}, 4711)
    assert before <= here.unix_seconds <= time.time()
    assert (here.host, here.address, here.probe_port) == (socket.gethostname(), "10.0.0.1", 4711)
    assert here.interfaces == {"10.0.0.2": "GLOO"}
    assert here.devices == tuple(map(str, rig))
    assert here.versions["torch"] == torch.__version__
    assert here.versions["python"] == platform.python_version()
    assert here.versions["anyrig"] == anyrig.__version__
    assert here.versions.get("cuda") == torch.version.cuda


def test_versions_that_differ() -> None:
    nodes = [
        Node(f"node{i}", f"10.0.0.{i}", 1, versions={"torch": "2.13.0", "python": "3.11.2"})
        for i in range(3)
    ]
    assert [f.text for f in compare(nodes, [0.0] * 3)] == ["torch 2.13.0", "python 3.11.2"]
    nodes[1].versions.update(torch="2.12.0")
    nodes[2].versions.update(python="3.12.0", driver="570")
    found = {f.text.split()[0]: f for f in compare(nodes, [0.0] * 3)}
    assert found["torch"].level is Level.BAD
    assert "torch differs: 2.13.0 on node0 (10.0.0.0), 2.12.0 on node1" in found["torch"].text
    assert found["torch"].advice == "install one torch everywhere"
    assert found["python"].level is found["driver"].level is Level.DOUBTFUL
    assert "none on node0 (10.0.0.0), none on node1 (10.0.0.1), 570" in found["driver"].text


def test_gpus_without_peer_access() -> None:
    first, second = (Device("cuda", index, "Tesla T4") for index in range(2))
    (bad,) = check_peers([Link(first, second, False, None, None)])
    assert bad.level is Level.DOUBTFUL
    assert bad.text.startswith("cuda:0 (Tesla T4) and cuda:1 (Tesla T4) copy through the host")
    assert list(check_peers([Link(first, second, None, None, None)])) == []
    (good,) = check_peers([Link(first, second, True, None, None)])
    assert good.text == "2 GPUs can access each other's memory"


@pytest.mark.parametrize(
    ("version", "value", "ranks", "level", "words"),
    [
        ("2.11.0", None, 2, Level.GOOD, "is ProcessGroupNCCL"),
        ("2.13.0+cpu", "1", 2, Level.DOUBTFUL, "TORCH_DIST_USE_NCCL2=1 has no effect"),
        ("2.14.1", None, 4, Level.GOOD, "is ProcessGroupNCCL"),
        ("2.14.1", "1", 4, Level.GOOD, "is ProcessGroupNCCL2, by TORCH_DIST_USE_NCCL2=1"),
        ("2.14.1", "0", 2, Level.DOUBTFUL, "has no effect"),
        ("2.15.0+cu132", "1", 2, Level.DOUBTFUL, "is ProcessGroupNCCL2, and TORCH_DIST_USE_NC"),
        ("2.15.0+cu132", "0", 4, Level.GOOD, "is ProcessGroupNCCL, by TORCH_DIST_USE_NCCL2=0"),
        ("2.15.0+cu132", None, 2, Level.GOOD, "it belongs to the GPU of LOCAL_RANK"),
        ("2.16.0a0", None, 4, Level.DOUBTFUL, "GPU 1 for rank 1, whose own is GPU 0"),
    ],
)
def test_which_group_nccl_means(
    version: str, value: str | None, ranks: int, level: Level, words: str
) -> None:
    environment = {} if value is None else {"TORCH_DIST_USE_NCCL2": value}
    (finding,) = judge_nccl_group(version, environment, devices=2, ranks=ranks)
    assert finding.level is level
    assert words in finding.text
    assert (finding.advice is None) is (level is Level.GOOD)
    assert words != "is ProcessGroupNCCL" or finding.text.endswith(words)


@pytest.mark.skipif(
    not hasattr(torch.distributed.distributed_c10d, "_register_builtin_nccl_backend"),
    reason="PyTorch before 2.14 has one process group over NCCL",
)
@pytest.mark.parametrize("value", [None, "0", "1", "yes"])
def test_pytorch_chooses_the_group_as_stated(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    c10d: Any = torch.distributed.distributed_c10d
    monkeypatch.setattr(c10d.Backend, "_plugins", dict(c10d.Backend._plugins))
    if hasattr(c10d, "_FR_SELF_RECORDING_BACKENDS"):
        recording = set(c10d._FR_SELF_RECORDING_BACKENDS)
        monkeypatch.setattr(c10d, "_FR_SELF_RECORDING_BACKENDS", recording)
    environment = {} if value is None else {"TORCH_DIST_USE_NCCL2": value}
    monkeypatch.delenv("TORCH_DIST_USE_NCCL2", raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    c10d._register_builtin_nccl_backend()
    creates = {
        "ProcessGroupNCCL": c10d._create_nccl_process_group,
        "ProcessGroupNCCL2": c10d._create_nccl2_process_group,
    }
    expected = creates[class_of_nccl(torch.__version__, environment)]
    assert c10d.Backend._plugins["NCCL"].creator_fn is expected
