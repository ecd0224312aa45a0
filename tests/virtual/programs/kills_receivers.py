"""A process sends a CUDA tensor to two others and frees it; both are killed."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import multiprocessing

MIB = 2**20


def receive(tensors: Any, answers: Any) -> None:
    """Hold a received tensor, twice, until killed."""
    held = [tensors.get(), tensors.get()]
    if os.fork() == 0:
        # A child may not touch what it inherits: the sender would take the parent for gone.
        held.clear()
        os._exit(0)
    os.wait()
    answers.put(held[0].sum().item())
    signal.pause()


def held_bytes() -> int:
    """Return the bytes that receivers of freed memory hold."""
    torch.cuda.ipc_collect()
    return torch.cuda.memory_allocated()


def main() -> None:
    """Print the bytes that stay allocated while the receivers live, and after."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    queues = [context.Queue() for _ in range(2)]
    receivers = [context.Process(target=receive, args=(one, answers)) for one in queues]
    for receiver in receivers:
        receiver.start()
    sent = torch.ones(MIB, device="cuda")
    for tensors in queues:
        tensors.put(sent)
        tensors.put(sent)
    received = [answers.get(timeout=60) for _ in receivers]
    print("received" if received == [float(MIB)] * 2 else received)
    del sent, tensors
    print("held", held_bytes())
    receivers[0].kill()
    receivers[0].join()
    print("held", held_bytes())
    os.kill(receivers[1].pid, signal.SIGKILL)
    os.waitid(os.P_PID, receivers[1].pid, os.WEXITED | os.WNOWAIT)  # a zombie holds nothing
    print("freed", held_bytes())
    receivers[1].join()


if __name__ == "__main__":
    main()
