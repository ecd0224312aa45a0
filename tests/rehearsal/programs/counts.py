"""Counts the devices without a use of CUDA, here and in a process that inherits the rig."""

import subprocess
import sys

import torch

print(
    torch.cuda.is_available(),
    torch.cuda.device_count(),
    [torch.cuda._get_nvml_device_index(index) for index in range(2)],
    flush=True,
)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "again"], check=True)
