"""Recognize that a step ran out of memory, and release what the step held."""

from __future__ import annotations

import gc
import sys
import traceback

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that a device has too little free memory."""
    # Libraries report CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED and the like.
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "ALLOC_FAILED" in str(error)
    )


def release_step(error: BaseException) -> None:
    """Drop the variables of the functions that `error` has left, and empty PyTorch's caches."""
    pending: list[BaseException | None] = [error]
    seen = set()
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            pending += [each.__cause__, each.__context__]
    torch.clear_autocast_cache()
    empty_caches()
    _await_backward_threads()


def add_note(error: BaseException, text: str) -> None:
    """Show `text` below the traceback of an exception."""
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        error.args = (*error.args, text)


def empty_caches() -> None:
    """Free what only reference cycles hold, and give cached memory back to the devices."""
    gc.collect()
    torch.cuda.empty_cache()


def _await_backward_threads() -> None:
    """Wait until no thread of autograd computes a part of a backward pass that has failed.

    ``backward()`` may raise when one device fails, while the threads of other devices still run the
    operators that they have begun. Each device has one thread, so another backward pass ends after
    these operators. The hook is Python code, which autograd always runs in the device's thread.
    """
    for device in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(device):
            with torch.enable_grad():
                x = torch.ones((), device=f"cuda:{device}", requires_grad=True)
                y = x.exp()
                y.register_hook(lambda gradient: None)  # type: ignore[no-untyped-call]
                torch.autograd.grad(y, x)
