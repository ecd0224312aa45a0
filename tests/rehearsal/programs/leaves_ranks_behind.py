"""Starts rank 1 without waiting for it: rank 1 trains longer than rank 0, and ends last."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

HOW = sys.argv[1]
READY = sys.argv[2] if len(sys.argv) > 2 else ""  # a file that the server makes


def train(rank: int, steps: int) -> None:
    net = nn.Linear(64, 64).to(f"cuda:{rank}")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(steps):
        net(torch.ones(8, 64, device=f"cuda:{rank}")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 1:
            time.sleep(0.1)


def serve() -> None:
    torch.ones(1, device="cuda:1")
    Path(READY).touch()
    time.sleep(600)


def await_server() -> None:
    while not Path(READY).exists():
        time.sleep(0.05)


if __name__ == "__main__":
    if HOW == "rank":
        train(1, 6)
    elif HOW == "serves":
        serve()
    else:
        spawning = multiprocessing.get_context("spawn")
        if HOW == "session":
            subprocess.Popen([sys.executable, __file__, "rank"], start_new_session=True)
        elif HOW == "shell":
            subprocess.Popen(f"{sys.executable} {__file__} rank", shell=True)
        elif HOW == "spawned":
            spawning.Process(target=train, args=(1, 6)).start()
        elif HOW == "daemon":
            daemon = spawning.Process(target=serve, daemon=True)
            daemon.start()
            await_server()
        elif HOW == "fails":
            left = subprocess.Popen([sys.executable, __file__, "serves", READY])
            print(left.pid, flush=True)
            await_server()
        train(0, 2)
        time.sleep(0.5)  # until Python has started in the other process
        if HOW == "fails":
            raise SystemExit(3)
