"""Processes on the CPU keep freed memory, which glibc would return after every step."""

import os
import platform
import resource
import subprocess
import sys

import pytest

import anyrig
from anyrig.processes.host_memory import keep_freed_memory

NAMES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(512 * 2**20), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}


@pytest.fixture(autouse=True)
def _nothing_adjusted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES":
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("device", "user", "kept"),
    [
        ("cpu", {}, True),
        ("cpu", {"PATH": "/bin", "GLIBC_TUNABLES": "glibc.cpu.x86_shstk=on"}, True),
        ("cuda:0", {}, False),
        ("GPU-8932f937", {}, False),
        (None, {}, True),
        ("cpu", {"MALLOC_ARENA_MAX": "2"}, False),
        ("cpu", {"MALLOC_TRIM_THRESHOLD_": "1"}, False),
        ("cpu", {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}, False),
    ],
)
def test_memory_is_kept_on_the_cpu_unless_the_user_adjusts_it(
    device: str | None, user: dict[str, str], kept: bool
) -> None:
    rank = {} if device is None else {"ANYRIG_DEVICE": device}
    assert keep_freed_memory(rank, user) == (KEPT if kept else {})


def _train() -> tuple[dict[str, str | None], float]:
    """Return the variables, and the page faults of allocating and freeing eight times 24 MiB."""
    for _ in range(3):
        blocks = [bytearray(24 * 2**20) for _ in range(8)]
        del blocks
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        blocks = [bytearray(24 * 2**20) for _ in range(8)]
        del blocks
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {name: os.environ.get(name) for name in NAMES}, faults / 5


def test_reused_memory_causes_no_page_faults() -> None:
    variables, faults = anyrig.launch(_train, rig="cpu", nproc_per_device=2)
    assert variables == KEPT
    if platform.libc_ver()[0] == "glibc":
        # 192 MiB are 49,152 pages.
        assert faults < 5_000


def test_the_user_s_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1048576")
    variables, _ = anyrig.launch(_train, rig="cpu", nproc_per_device=2)
    assert variables == {"MALLOC_TRIM_THRESHOLD_": None, "MALLOC_MMAP_THRESHOLD_": "1048576"}


OWN = """
import resource
import torch
from torch import nn
import anyrig

SPREAD
def allocate():
    for _ in range(3):
        blocks = [bytearray(24 * 2**20) for _ in range(8)]
        del blocks

allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
allocate()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 3)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
@pytest.mark.parametrize(
    ("processes", "user", "kept"),
    [(2, {}, True), (1, {}, False), (2, {"MALLOC_TRIM_THRESHOLD_": "131072"}, False)],
)
def test_a_script_with_worker_processes_keeps_its_own(
    processes: int, user: dict[str, str], kept: bool
) -> None:
    plan = f"plan=anyrig.Replicas(processes={processes})"
    program = OWN.replace("SPREAD", f'model = anyrig.spread(nn.Linear(4, 4), "cpu", {plan})')
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **user},
        timeout=120,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (int(ended.stdout) < 5_000) == kept, ended.stdout
