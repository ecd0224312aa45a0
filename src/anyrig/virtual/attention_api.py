"""The functions of `torch._C` that report which attention kernels a GPU can run."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def bindings(core: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions by their names in `torch._C`; a CPU build's own return False."""
    return {
        "_is_flash_attention_available": lambda: True,
        "_can_use_flash_attention": core.can_use_flash_attention,
        "_can_use_mem_efficient_attention": core.can_use_efficient_attention,
        "_can_use_cudnn_attention": core.can_use_cudnn_attention,
    }
