"""The thread that runs a backward pass.

PyTorch runs the backward pass of each CUDA device in a thread of its own, so that devices work
concurrently. With one virtual GPU there is no concurrency to gain: the calling thread only waits,
and the other thread runs on a core whose cache is cold. A step of a small network was 5 % slower.

A backward pass that runs Python code of the program (hooks, custom functions) stays in the
device's thread, as on a real GPU, because that code can observe its thread. A pass of PyTorch's own
nodes on one device runs in the calling thread. Saved-tensor hooks do not appear in the graph and
may run in either thread.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.autograd.grad_mode import set_multithreading_enabled

# The engine behind all functions of torch.autograd.
_Engine: Any = torch._C._ImperativeEngine


def patch(core: ModuleType) -> None:
    """Run backward passes in the calling thread where the program cannot observe the thread."""

    class Engine(_Engine):  # type: ignore[misc]
        def run_backward(self, tensors: Any, *arguments: Any, **options: Any) -> Any:
            if core.needs_backward_threads(tensors):
                return super().run_backward(tensors, *arguments, **options)
            try:
                with set_multithreading_enabled(False):
                    return super().run_backward(tensors, *arguments, **options)
            except BaseException:
                core.drop_failed_backward()
                raise

    variable: Any = torch.autograd.Variable
    variable._execution_engine = Engine()
