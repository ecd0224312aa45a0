"""Starts a process that holds memory, says so, and waits for it."""

import sys
import time

import torch
import torch.multiprocessing as mp


def hold(rank: int) -> None:
    kept = torch.ones(10, device="cuda")
    print("holds", flush=True)
    time.sleep(60)
    del kept


if __name__ == "__main__":
    if len(sys.argv) > 1:
        hold(0)
    mp.spawn(hold)
