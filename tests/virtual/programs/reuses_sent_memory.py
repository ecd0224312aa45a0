"""A process needs the memory that another process received and has released."""

from __future__ import annotations

from typing import Any

import torch
from torch import multiprocessing

MIB = 2**20


def receive(tensors: Any, answers: Any) -> None:
    """Release the received tensor."""
    tensor = tensors.get()
    answers.put(tensor.numel())
    tensors.get()
    del tensor
    answers.put("released")
    tensors.get()


def main() -> None:
    """Send most of the GPU's memory, let it go, and allocate as much again."""
    context = multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=receive, args=(tensors, answers))
    process.start()
    sent = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    tensors.put(sent)
    print(answers.get(timeout=60))
    del sent
    print(torch.cuda.memory_allocated() // MIB)
    try:
        torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print("in use")
    tensors.put(None)
    print(answers.get(timeout=60))
    again = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    print(torch.cuda.memory_allocated() // MIB, torch.cuda.memory_stats()["num_alloc_retries"])
    del again
    tensors.put(None)
    process.join(60)
    print(process.exitcode)


if __name__ == "__main__":
    main()
