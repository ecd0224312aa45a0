"""The GPU readings that programs log during training."""

from __future__ import annotations

import ctypes
import os
import re

import pytest
import torch

import anyrig
from anyrig.virtual import installation

DEVICE = 3


@pytest.mark.virtual_only("the readings are those of an idle A100")
def test_the_readings_of_a_gpu() -> None:
    assert torch.cuda.utilization(1) == 0
    assert torch.cuda.memory_usage() == 0
    assert torch.cuda.temperature() == 30
    assert torch.cuda.power_draw("cuda:1") == 50_000
    assert torch.cuda.clock_rate() == 1410
    visible = r"\(CUDA_VISIBLE_DEVICES=\[0, 1, 2, 3, 4, 5, 6, 7\]\)"
    for index in (8, 99):
        with pytest.raises(RuntimeError, match=f"device {index} is not visible {visible}"):
            torch.cuda.utilization(index)


@pytest.mark.whole_gpu
def test_memory_in_use_is_what_the_driver_handed_out() -> None:
    kept = torch.empty(8 * 2**20, dtype=torch.uint8, device=f"cuda:{DEVICE}")
    used = torch.cuda.device_memory_used(DEVICE)
    assert used >= kept.nbytes
    listed = torch.cuda.list_gpu_processes(DEVICE)
    own = rf"GPU:{DEVICE}\nprocess {os.getpid():>10d} uses +([0-9.]+) MB GPU memory"
    found = re.fullmatch(own, listed)
    assert found, listed
    if installation() is not None:  # a real driver counts a process's memory in other ways, too
        assert found[1] == f"{used / 2**20:.3f}"
    with torch.cuda.device(DEVICE):
        assert torch.cuda.device_memory_used() == used
    torch.cuda.empty_cache()


@pytest.mark.whole_gpu
def test_a_reading_names_the_processes() -> None:
    kept = torch.empty(8 * 2**20, dtype=torch.uint8, device=f"cuda:{DEVICE}")
    used, other = (
        anyrig.devices.read(device) for device in anyrig.Rig.parse(f"cuda:{DEVICE},cuda:6")
    )
    assert used.own_bytes >= kept.nbytes
    assert [(p.pid, p.used_bytes) for p in used.processes] == [(os.getpid(), used.own_bytes)]
    assert other.others_bytes == 0


def test_the_runtime_explains_its_numbers() -> None:
    runtime = torch.cuda.cudart()
    assert runtime.cudaGetErrorString(runtime.cudaError(2)) == "out of memory"
    texts = {
        0: "no error",
        1: "invalid argument",
        3: "initialization error",
        100: "no CUDA-capable device is detected",
        101: "invalid device ordinal",
        400: "invalid resource handle",
        600: "device not ready",
        700: "an illegal memory access was encountered",
        710: "device-side assert triggered",
        801: "operation not supported",
        12345: "unrecognized error code",
    }
    found = {number: runtime.cudaGetErrorString(runtime.cudaError(number)) for number in texts}
    assert found == texts
    with pytest.raises(TypeError, match="incompatible function arguments"):
        runtime.cudaGetErrorString(2)
    assert runtime.cudaError.success == 0
    free_bytes, total_bytes = runtime.cudaMemGetInfo(DEVICE)
    assert (free_bytes, total_bytes) == torch.cuda.mem_get_info(DEVICE)
    with pytest.raises(torch.cuda.CudaError, match=r"out of memory \(2\)"):
        torch.cuda.check_error(2)


def test_the_runtime_makes_streams() -> None:
    place = ctypes.c_uint64(0)
    with torch.cuda.device(DEVICE):
        assert torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(place)) == 0
    stream = torch.cuda.ExternalStream(place.value, device=DEVICE)
    assert place.value != 0
    assert stream.cuda_stream == place.value
    assert stream.device == torch.device("cuda", DEVICE)
    assert torch.cuda.cudart().cudaStreamDestroy(place.value) == 0


def test_memory_of_the_program_can_be_pinned() -> None:
    x = torch.ones(20)
    runtime = torch.cuda.cudart()
    assert not x.is_pinned()
    assert runtime.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == 0
    assert x.is_pinned()
    assert runtime.cudaHostUnregister(x.data_ptr()) == 0
    assert not x.is_pinned()
