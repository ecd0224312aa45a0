"""In which thread a backward pass computes.

PyTorch gives each CUDA device a thread for backward passes, so that devices work side by side. On
one virtual device nothing works side by side: the caller only waits, while another core computes
with what lies in the caller's cache. That made a step of a small network 5 % slower.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.autograd.grad_mode import set_multithreading_enabled

_Engine: Any = torch._C._ImperativeEngine


def patch(core: ModuleType) -> None:
    """Have backward passes compute in the thread that calls them while one device is in use."""

    class Engine(_Engine):  # type: ignore[misc]
        def run_backward(self, *roots: Any, **options: Any) -> Any:
            if core.count_contexts() > 1:
                return super().run_backward(*roots, **options)
            with set_multithreading_enabled(False):
                return super().run_backward(*roots, **options)

    variable: Any = torch.autograd.Variable
    variable._execution_engine = Engine()
