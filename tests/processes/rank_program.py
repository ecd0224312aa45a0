"""The program of the tests' ranks: ``rank_program.py WAY [BACKEND]``; WAY is what rank 1 does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

LIMIT = os.environ.get("TEST_LIMIT")


def main(way: str, backend: str = "gloo") -> None:
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    limit = {} if LIMIT is None else {"timeout": timedelta(seconds=float(LIMIT))}
    dist.init_process_group(backend, **limit)
    rank = dist.get_rank()
    total = torch.ones(1, device="cuda" if backend == "nccl" else "cpu") * (rank + 1)
    dist.all_reduce(total)
    print("total", total.item(), flush=True)
    collective = COLLECTIVES[os.environ.get("TEST_COLLECTIVE", "all_reduce")](total)
    if way in ("wait", "children"):
        # In the rank's session, in a process group of its own.
        subprocess.Popen(["sleep", "120"], preexec_fn=os.setpgrp)
    if folder := os.environ.get("TEST_READY"):
        dist.barrier()
        Path(folder, str(rank)).write_text(str(os.getpid()))
    if rank == 1:
        WAYS.get(way, lambda _: None)(total)
    if way == "pause-when-two" and dist.get_world_size() > 1:
        time.sleep(100)
    if way in ("wait", "pause"):
        time.sleep(100 if way == "wait" else 8)
    collective()
    print("done", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    group = weakref.ref(dist.group.WORLD)
    dist.destroy_process_group()
    if way == "well":
        print("group", "gone" if group() is None else "held", flush=True)


def fail(_: torch.Tensor) -> None:
    raise RuntimeError("the disk is on fire")


def fail_after_leaving(_: torch.Tensor) -> None:
    try:
        fail(_)
    finally:
        dist.destroy_process_group()  # so the others fail first


def fail_once(_: torch.Tensor) -> None:
    saved = Path(os.environ["TEST_SAVED"])
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        saved.write_text("epoch 7")
        # In the same session, in a process group of its own: it must not see the next attempt.
        subprocess.Popen(["sleep", "120"], preexec_fn=os.setpgrp)
        os.kill(os.getpid(), signal.SIGKILL)
    print("loaded", saved.read_text(), flush=True)


def kill(_: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_with_workers(_: torch.Tensor) -> None:
    loader = torch.utils.data.DataLoader(list(range(1000)), num_workers=1)
    next(iter(loader))
    os.kill(os.getpid(), signal.SIGKILL)


def leave(_: torch.Tensor) -> None:
    sys.exit(0)


def drop_out(_: torch.Tensor) -> None:
    os._exit(3)


def suspend(_: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep(_: torch.Tensor) -> None:
    time.sleep(100)


def spin(_: torch.Tensor) -> None:
    sum(range(10**12))  # in C, and with the GIL


def heed_nothing(_: torch.Tensor) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: print("never mind", flush=True))
    while True:
        time.sleep(1)


def wait_elsewhere(total: torch.Tensor) -> None:
    dist.broadcast(total, 2)


def backward(total: torch.Tensor) -> Callable[[], object]:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1).to(total.device))
    loss = model(total)
    return lambda: (loss.backward(), model)  # without the model nothing would be reduced


def shard(total: torch.Tensor) -> Callable[[], object]:
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(8, 8).to(total.device))
    return lambda: model(total.expand(8)).sum().backward()


WAYS = {
    "raise": fail,
    "raise-after-leaving": fail_after_leaving,
    "again": fail_once,
    "kill": kill,
    "workers": kill_with_workers,
    "children": kill,
    "leave": leave,
    "exit": drop_out,
    "suspend": suspend,
    "late": sleep,
    "spin": spin,
    "stubborn": heed_nothing,
    "elsewhere": wait_elsewhere,
}
COLLECTIVES: dict[str, Callable[[torch.Tensor], Callable[[], object]]] = {
    "all_reduce": lambda total: lambda: dist.all_reduce(total),
    "broadcast": lambda total: lambda: dist.broadcast(total, 1),
    "barrier": lambda _: lambda: dist.barrier(),
    "gather": lambda total: lambda: dist.all_gather([total.clone() for _ in range(3)], total),
    "backward": backward,
    "shard": shard,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
