"""Libraries of operators that a program loads, such as torchvision's.

Those that are built for CUDA bring kernels for real cards. Where they bring one for the CPU too, it
is the one that runs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def patch(core: ModuleType) -> None:
    """Let `torch.ops.load_library` replace the kernels for CUDA that a library brings."""
    operators: Any = torch.ops
    load_elsewhere = operators.load_library

    def load_library(path: Any) -> None:
        core.note_operators()
        load_elsewhere(path)
        core.take_over_operators()

    operators.load_library = load_library
