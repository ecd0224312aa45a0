"""What the ranks of the tests run: ``rank_program.py WAY``."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def main(way: str) -> None:
    limit = timedelta(seconds=3) if way == "late" else timedelta(seconds=60)
    dist.init_process_group("gloo", timeout=limit)
    rank = dist.get_rank()
    total = torch.ones(1) * (rank + 1)
    dist.all_reduce(total)
    print("total", total.item(), flush=True)
    if folder := os.environ.get("TEST_PIDS"):
        child = os.fork()  # as a loader's worker: it must not stay behind either
        if child == 0:
            time.sleep(120)
            os._exit(0)
        Path(folder, f"{rank}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").write_text(
            f"{os.getpid()} {child}"
        )
        dist.barrier()
        print("ready", flush=True)
    if rank == 1:
        {"raise": fail, "kill": die, "late": sleep, "leave": leave, "again": fail_once}.get(
            way, lambda: None
        )()
    if way == "wait":
        sleep()
    dist.all_reduce(total)
    print("done", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    dist.destroy_process_group()


def fail() -> None:
    raise RuntimeError("the disk is on fire")


def fail_once() -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        fail()


def die() -> None:
    os.kill(os.getpid(), 9)


def leave() -> None:
    sys.exit(0)


def sleep() -> None:
    time.sleep(100)


if __name__ == "__main__":
    main(sys.argv[1])
