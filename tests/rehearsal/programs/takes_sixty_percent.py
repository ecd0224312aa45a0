"""Two processes take 60 % of a GPU each: the second cannot, until the first is killed."""

import subprocess
import sys

import torch

HOLD = """
import sys, torch
torch.cuda.set_per_process_memory_fraction(0.7)
kept = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda:0")
print("holds", flush=True)
sys.stdin.read()
"""


def take() -> torch.Tensor:
    return torch.empty(share, dtype=torch.uint8, device="cuda:0")


total = torch.cuda.mem_get_info(0)[1]
share = total * 6 // 10
torch.cuda.set_per_process_memory_fraction(0.8)
with subprocess.Popen(
    [sys.executable, "-c", HOLD, str(share)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
) as other:
    assert other.stdout.readline() == b"holds\n"
    try:
        take()
    except torch.OutOfMemoryError as error:
        print(str(error).replace(str(other.pid), "PID").partition("Of the allocated")[0])
    print(torch.cuda.mem_get_info(0)[0] // 2**20, "MiB free")
    other.kill()
    other.wait()
    print(torch.cuda.mem_get_info(0)[0] // 2**20, "MiB free")
    kept = take()
    print(torch.cuda.mem_get_info(0)[0] // 2**20, "MiB free")
