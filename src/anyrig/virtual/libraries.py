"""Operator libraries that a program loads, such as torchvision's.

A library built for CUDA registers CUDA kernels, which need a real GPU. Virtual GPUs run the
library's CPU kernel of the same operator instead, if it has one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def patch(core: ModuleType) -> None:
    """Make `torch.ops.load_library` replace the CUDA kernels that a library registers."""
    operators: Any = torch.ops
    original_load_library = operators.load_library

    def load_library(path: Any) -> None:
        core.note_operators()
        original_load_library(path)
        core.take_over_operators()

    operators.load_library = load_library
