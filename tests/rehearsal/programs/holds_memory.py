"""Two processes hold memory of one GPU, and NVML is asked in each way: see test_driver.py."""

import json
import os
import subprocess
import sys

import pynvml
import torch

HOLDER = """
import sys, torch
kept = torch.empty(48 * 2**20, dtype=torch.uint8, device="cuda:1")
print(flush=True)
sys.stdin.read()
"""
# Without torch: it finds the library through its environment alone.
LOOKER = """
import sys, pynvml
pynvml.nvmlInit()
second = pynvml.nvmlDeviceGetHandleByIndex(1)
print(pynvml.nvmlDeviceGetMemoryInfo(second).used, "torch" in sys.modules)
"""


def used_bytes(index: int) -> int:
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
    return pynvml.nvmlDeviceGetMemoryInfo(handle).used


def torch_bytes(index: int) -> int:
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    return total_bytes - free_bytes


def show(**values: object) -> None:
    print(json.dumps(values), flush=True)


pynvml.nvmlInit()
kept = torch.empty(20 * 2**20, dtype=torch.uint8, device="cuda:1")
holder = subprocess.Popen(
    [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
)
holder.stdout.readline()
names = {os.getpid(): "self", holder.pid: "other"}
second = pynvml.nvmlDeviceGetHandleByIndex(1)
show(
    used=[used_bytes(index) for index in range(2)],
    torch_used=[torch_bytes(index) for index in range(2)],
    holders={
        names[process.pid]: process.usedGpuMemory
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(second)
    },
    looker=subprocess.check_output([sys.executable, "-c", LOOKER], text=True).split(),
    smi=subprocess.check_output(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], text=True
    ).split(),
    smi_holders=sorted(
        names[int(line)]
        for line in subprocess.check_output(
            ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"], text=True
        ).split()
    ),
    torch_index=torch.cuda._get_nvml_device_index(1),
)
holder.kill()
holder.wait()
show(used=used_bytes(1), torch_used=torch_bytes(1))
