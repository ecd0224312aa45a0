"""Starts processes in every way, and prints what each finds."""

import json
import multiprocessing
import os
import subprocess
import sys

import torch
from torch.utils.data import DataLoader, Dataset

CHILD = """
import json, sys
import anyrig.virtual, torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
anyrig.virtual.install("T4+L4")
kept = torch.ones(2**20, device="cuda")
try:
    anyrig.virtual.install("T4")
except anyrig.errors.AnyrigError as error:
    print(json.dumps([names, str(error), torch.cuda.mem_get_info(0)]), flush=True)
sys.stdin.read()
"""


def look(queue: multiprocessing.Queue) -> None:
    x = torch.ones(3, device="cuda:1")
    queue.put((torch.cuda.device_count(), x.sum().item()))


class Seen(Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return torch.cuda.device_count()


def main() -> None:
    for method in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        child = context.Process(target=look, args=(queue,))
        child.start()
        print(method, queue.get(timeout=60))
        child.join()
    uuid = str(torch.cuda.get_device_properties(1).uuid)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": f"GPU-{uuid},0"},
    ) as child:
        names, error, (free, total) = json.loads(child.stdout.readline())
        print(names)
        print(error)
        print(torch.cuda.list_gpu_processes(1).replace(str(child.pid), "PID").split())
        print(torch.cuda.device_memory_used(1) == total - free, total - free)
        kept = torch.ones(1, device="cuda:1")
        workers = DataLoader(Seen(), num_workers=2)
        print(
            [batch.item() for batch in workers], len(torch.cuda.list_gpu_processes(1).split("\n"))
        )
        del kept


if __name__ == "__main__":
    main()
