"""Lets rank 0 run out of memory while it gathers shards, and prints the error of each rank.

``python failed_gather.py FOLDER``
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from killed_ranks import start_rank, start_store
from torch import nn
from torch.distributed.fsdp import fully_shard

import anyrig

RANKS, LIMIT_SECONDS = 2, 2.0


def save(folder: Path, result: Path, announce: Callable[[int], None]) -> None:
    # Above the largest size that malloc keeps for later: the allocation asks the system.
    large = nn.utils.skip_init(nn.Linear, 4096, 4096)
    model = fully_shard(nn.Sequential(nn.Linear(8, 8), large, nn.Linear(8, 8)))
    anyrig.save(folder, step=1)
    if dist.get_rank() == 0:
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 2**24, resource.RLIM_INFINITY))
    started = time.monotonic()
    try:
        anyrig.save(folder, model=model, step=2, sharded=False)
    except Exception as error:
        seconds = time.monotonic() - started
        result.write_text(f"{seconds:.0f} s, {type(error).__name__}: {error}")
        if dist.get_rank() == 0:
            time.sleep(1.5 * LIMIT_SECONDS)  # its program goes on
        os._exit(0)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    host, port = start_store()
    results = [folder.with_name(f"result-{rank}") for rank in range(RANKS)]
    children = []
    for rank, result in enumerate(results):

        def work(announce: Callable[[int], None], result: Path = result) -> None:
            save(folder, result, announce)

        children.append(start_rank(rank, "only", port, work, RANKS, LIMIT_SECONDS)[0])
    for child in children:
        os.waitpid(child, 0)
    os.kill(host, signal.SIGKILL)
    os.waitpid(host, 0)
    for result in results:
        print(result.read_text().splitlines()[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
