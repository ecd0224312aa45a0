"""Two processes that send each other CUDA tensors through queues."""

from __future__ import annotations

from typing import Any

import torch
from torch import multiprocessing

DEVICE = torch.device("cuda", 1)
MIB = 2**20


def other(tensors: Any, answers: Any) -> None:
    """Print and modify each received tensor."""
    same, view, again = tensors.get(), tensors.get(), tensors.get()
    same += 1
    answers.put((str(same.device), view.tolist(), again.untyped_storage() is not None))
    answers.put(torch.cuda.memory_allocated(DEVICE))
    try:
        multiprocessing.reductions.reduce_tensor(same)
    except RuntimeError as error:
        answers.put(str(error)[:60])
    parameter, event = tensors.get()
    event.synchronize()
    answers.put((type(parameter).__name__, parameter.requires_grad, event.query()))
    del same, view, again
    dropped = tensors.get()  # the sender has released it
    answers.put(dropped.sum().item())
    tensors.get()
    del dropped
    answers.put("let go")
    tensors.get()
    del parameter
    answers.put("let go of all")
    tensors.get()


def main() -> None:
    """Send tensors, and print the other process's answers."""
    context = multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=other, args=(tensors, answers))
    process.start()
    x = torch.arange(6.0, device=DEVICE)
    twin_before = x * 2
    for tensor in (x, x[2:4], x):
        tensors.put(tensor)
    print(answers.get(timeout=60), answers.get(timeout=60))
    print(answers.get(timeout=60))
    print(x.tolist(), twin_before.sum().item())
    event = torch.cuda.Event(interprocess=True)
    event.record()
    tensors.put((torch.nn.Parameter(x), event))
    print(answers.get(timeout=60))
    held = torch.cuda.memory_allocated(DEVICE)
    tensors.put(torch.ones(MIB, device=DEVICE))
    print(answers.get(timeout=60), torch.cuda.memory_allocated(DEVICE) - held)
    tensors.put(None)
    print(answers.get(timeout=60))
    torch.cuda.ipc_collect()
    print(torch.cuda.memory_allocated(DEVICE) - held)
    tensors.put(None)
    print(answers.get(timeout=60))
    del x, tensor, twin_before  # the other process received some three times
    torch.cuda.ipc_collect()
    print(torch.cuda.memory_allocated(DEVICE))
    tensors.put(None)
    process.join(60)
    print(process.exitcode)


if __name__ == "__main__":
    main()
