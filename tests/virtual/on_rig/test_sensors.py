"""What programs log of a card while they train."""

from __future__ import annotations

import os

import pytest
import torch

import anyrig


def test_the_readings_of_a_card() -> None:
    assert torch.cuda.utilization(1) == 0
    assert torch.cuda.memory_usage() == 0
    assert torch.cuda.temperature() > 0
    assert torch.cuda.power_draw("cuda:1") > 0
    assert torch.cuda.clock_rate() > 0
    with pytest.raises(RuntimeError, match="device 99 is not visible"):
        torch.cuda.utilization(99)


def test_memory_in_use_is_what_the_driver_handed_out() -> None:
    kept = torch.empty(8 * 2**20, dtype=torch.uint8, device="cuda:3")
    assert torch.cuda.device_memory_used(3) >= kept.nbytes
    assert f"process {os.getpid():>10d} uses" in torch.cuda.list_gpu_processes(3)
    torch.cuda.empty_cache()
    assert torch.cuda.list_gpu_processes(6) == "GPU:6\nno processes are running"


def test_a_reading_names_the_processes() -> None:
    kept = torch.empty(8 * 2**20, dtype=torch.uint8, device="cuda:3")
    used, unused = (anyrig.read(device) for device in anyrig.Rig.parse("cuda:3,cuda:7"))
    assert used.own_bytes >= kept.nbytes
    assert [(p.pid, p.used_bytes) for p in used.processes] == [(os.getpid(), used.own_bytes)]
    assert (unused.processes, unused.others_bytes) == ((), 0)


def test_the_runtime_explains_its_numbers() -> None:
    runtime = torch.cuda.cudart()
    assert runtime.cudaGetErrorString(runtime.cudaError(2)) == "out of memory"
    with pytest.raises(torch.cuda.CudaError, match=r"out of memory \(2\)"):
        torch.cuda.check_error(2)


def test_memory_of_the_program_can_be_pinned() -> None:
    x = torch.ones(20)
    runtime = torch.cuda.cudart()
    assert not x.is_pinned()
    assert runtime.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == 0
    assert x.is_pinned()
    assert runtime.cudaHostUnregister(x.data_ptr()) == 0
    assert not x.is_pinned()
